"""A policy's rules for traffic classes on one target: what its engine is asked for, and what is told."""

from __future__ import annotations

import logging
from typing import Protocol

from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit, class_words
from specctl.contract.table import AppliedTable
from specctl.controller.audit import AuditLog

__all__ = ["ClassRules"]

logger = logging.getLogger(__name__)


class Rules(Protocol):
    """What of a policy counts here."""

    @property
    def classes(self) -> tuple[ClassLimit, ...]: ...


class ClassRules:
    def __init__(self, target: str, owner: str, audit: AuditLog) -> None:
        self._target = target
        self._owner = owner
        self._audit = audit
        self.forget()

    def forget(self) -> None:
        """The engine restarted, maybe with another plugin."""
        self._told: tuple[ClassLimit, ...] = ()

    def wanted(
        self, capabilities: Capabilities, applied: AppliedTable, policy: Rules, *, is_frozen: bool
    ) -> tuple[ClassLimit, ...]:
        """All of the policy's, or none where the engine does not take as many: fewer is another policy.

        The reason is told once for each engine and each set of rules.
        """
        if is_frozen:
            return applied.class_limits
        rules, most = policy.classes, capabilities.class_limits_max
        if len(rules) <= most:
            self._told = ()
            return rules
        if self._told != rules:
            self._told = rules
            why = (
                f"it takes {most} rules for classes, the policy has {len(rules)}"
                if most
                else "this engine or its plugin does not bound the drafts of single requests"
            )
            logger.warning("%s: the policy's classes are left out: %s", self._target, why)
            record = {"owner": self._owner, "kind": "class_limits", "error": why}
            self._audit.write("refused", self._target, record)
        return ()

    def applied(self, before: AppliedTable, after: AppliedTable) -> None:
        """A table is in force; nothing is told of rules that it already had."""
        if before.class_limits == after.class_limits:
            return
        words = [
            f"{class_words(one)}: at most {one.max_num_speculative_tokens} tokens"
            for one in after.class_limits
        ]
        explanation = "; ".join(words) or "no rules for classes any more"
        logger.info("%s: %s", self._target, explanation)
        record = {
            "owner": self._owner,
            "from": [one.model_dump() for one in before.class_limits],
            "to": [one.model_dump() for one in after.class_limits],
            "explanation": explanation,
            "version": after.version,
        }
        self._audit.write("class_limits", self._target, record)
