"""The most drafts of a request: by the table's rules for traffic classes, and by its own word."""

from __future__ import annotations

from collections.abc import Sequence

from specctl.contract.classes import ClassLimit
from specctl.engine.request_classes import ClassKey, limit_of

__all__ = ["LimitsByClass", "smaller"]

_KNOWN_MAX = 4096
"""Clients choose salts, so classes have no end."""


class LimitsByClass:
    """Remembers what the rules in force say of a class: a step asks for each of its requests."""

    def __init__(self) -> None:
        self._rules: Sequence[ClassLimit] = ()
        self._known: dict[ClassKey, int | None] = {}

    def of(self, rules: Sequence[ClassLimit], key: ClassKey) -> int | None:
        """None: no rule is for this class."""
        if rules is not self._rules:
            self._rules, self._known = rules, {}
        if key not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = limit_of(rules, key)
        return self._known[key]


def smaller(own: int | None, by_rule: int | None) -> int | None:
    """Of two limits, of which either may not be there."""
    if own is None or by_rule is None:
        return own if by_rule is None else by_rule
    return min(own, by_rule)
