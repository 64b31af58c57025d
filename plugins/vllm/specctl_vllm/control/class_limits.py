"""The most drafts of each request: by the table's rules for traffic classes, and by its own word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specctl.contract.classes import ClassLimit
from specctl.engine.request_classes import ClassKey, limit_of
from specctl_vllm.control.request_fields import field_of
from specctl_vllm.control.traffic_classes import key_of

__all__ = ["RequestLimits"]

_KNOWN_MAX = 4096
"""Clients choose salts, so classes have no end."""


class RequestLimits:
    """Remembers what the rules in force say of a class: a step asks for each of its requests."""

    def __init__(self) -> None:
        self._rules: Sequence[ClassLimit] = ()
        self._known: dict[ClassKey, int | None] = {}
        self._own: dict[str, Any] = {}
        """Requests that bound their drafts themselves, by id."""

    def arrived(self, request: Any) -> None:
        if field_of(request).max_draft_tokens is not None:
            self._own[request.request_id] = request

    def finished(self, request_ids: Iterable[str]) -> None:
        if self._own:
            for request_id in request_ids:
                self._own.pop(request_id, None)

    def cut(self, rules: Sequence[ClassLimit], requests: Iterable[Any]) -> None:
        """Take waiting drafts over the limit from each request. The kept ones are a list of their own: the
        placeholders of asynchronous scheduling are one list for all requests."""
        for request in requests if rules else self._own.values():
            limit = self._of(rules, request)
            if limit is not None and len(request.spec_token_ids) > limit:
                request.spec_token_ids = request.spec_token_ids[:limit]

    def most(self, rules: Sequence[ClassLimit], requests: Iterable[Any]) -> int | None:
        """The largest limit among the requests; None: one of them has none."""
        if not rules and not self._own:
            return None
        most = 0
        for request in requests:
            limit = self._of(rules, request)
            if limit is None:
                return None
            most = max(most, limit)
        return most

    def _of(self, rules: Sequence[ClassLimit], request: Any) -> int | None:
        own = field_of(request).max_draft_tokens
        by_rule = self._by_rule(rules, request) if rules else None
        if own is None or by_rule is None:
            return own if by_rule is None else by_rule
        return min(own, by_rule)

    def _by_rule(self, rules: Sequence[ClassLimit], request: Any) -> int | None:
        if rules is not self._rules:
            self._rules, self._known = rules, {}
        key = key_of(request)
        if key not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = limit_of(rules, key)
        return self._known[key]
