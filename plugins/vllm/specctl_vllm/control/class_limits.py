"""The most drafts of each request: by the table's rules for traffic classes, by its own word, and by its
min_tokens where vLLM would apply them wrongly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specctl.contract.classes import ClassLimit
from specctl.engine.request_limits import LimitsByClass, smaller
from specctl_vllm.control.request_fields import field_of
from specctl_vllm.control.traffic_classes import key_of

__all__ = ["RequestLimits"]


class RequestLimits:
    def __init__(self, bounds_min_tokens: bool = False) -> None:
        """bounds_min_tokens: for Model Runner V1. It forbids the token behind all drafts to end a request
        that had too few tokens before them (https://github.com/vllm-project/vllm/pull/32642 has the drafts'
        positions right, not that one's)."""
        self._by_class = LimitsByClass()
        self._bounds_min_tokens = bounds_min_tokens
        self._own: dict[str, Any] = {}
        """Requests that bound their drafts themselves, by id."""

    def arrived(self, request: Any) -> None:
        if field_of(request).max_draft_tokens is not None or self._until_min_tokens(request) is not None:
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
        by_rule = self._by_class.of(rules, key_of(request)) if rules else None
        return smaller(smaller(field_of(request).max_draft_tokens, by_rule), self._until_min_tokens(request))

    def _until_min_tokens(self, request: Any) -> int | None:
        """With so many drafts the token behind them is one of the first ``min_tokens``; None: all exist."""
        sampling_params = request.sampling_params
        if not self._bounds_min_tokens or sampling_params is None:
            return None
        known = request.num_output_tokens
        if known >= sampling_params.min_tokens:
            return None
        # Tokens in flight may all be kept, or none.
        return max(sampling_params.min_tokens - known - request.num_output_placeholders - 1, 0)
