"""Greedy answers that are decoded again without drafts while the engine is idle: which, and what came of it.

An answer must not depend on drafts. A plugin decodes the prompt again by its engine's own ways.
"""

from __future__ import annotations

import logging
from typing import Any

from specctl.contract.telemetry import SelfChecks
from specctl.contract.ties import tie_margin

__all__ = ["FIELD", "ID_PREFIX", "KEPT_MAX", "TOKENS_MAX", "AnswerChecks"]

KEPT_MAX = 8
"""Answers that wait for an idle moment; older ones make way."""
TOKENS_MAX = 256
"""Of an answer that are compared."""
ID_PREFIX = "specctl-self-check-"
"""Of the requests that decode an answer again."""
FIELD: dict[str, Any] = {"max_draft_tokens": 0, "share": False, "kind": "self-check"}
"""Their own field (``request_field``)."""


class AnswerChecks:
    """ratio: share of the comparable answers that are checked. dtype: of the target."""

    def __init__(self, ratio: float, dtype: str, log: logging.Logger) -> None:
        self.counts = SelfChecks()
        self._ratio, self._margin = ratio, tie_margin(dtype)
        self._log = log
        self._due = 0.0

    def takes_next(self) -> bool:
        """Whether the comparable answer that has just ended is one of those."""
        self._due += self._ratio
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    def identical(self) -> None:
        self._counted(identical=1)

    def differs(self, request_id: str, at: int, token: int, expected: int, lead: float) -> None:
        """Without drafts the answer's token ``at`` is ``token``, by ``lead`` in log probability."""
        if lead <= self._margin:
            self._counted(ties=1)
            return
        self._counted(differing=1)
        self._log.error(
            "specctl: the greedy answer of request %s differs without drafts: token %d is %d instead of %d, "
            "by %.3g in log probability, where rounding makes at most %.3g",
            request_id,
            at,
            token,
            expected,
            lead,
            self._margin,
        )

    def _counted(self, **more: int) -> None:
        counts = self.counts
        update = {name: getattr(counts, name) + one for name, one in more.items()}
        self.counts = counts.model_copy(update={"checked": counts.checked + 1, **update})
