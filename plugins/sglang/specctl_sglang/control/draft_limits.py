"""How many tokens may be drafted for each request, where that is less than the table's number.

SGLang verifies drafts with the penalties as they were before the step, and adds one token of each step to
them. With drafts accepted they would lack tokens, so a request with penalties gets no drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specctl.contract.classes import ClassLimit
from specctl.engine.request_classes import ClassKey
from specctl.engine.request_limits import LimitsByClass, smaller
from specctl_sglang.control.request_fields import field_of

__all__ = ["DraftLimits", "has_own_penalties", "penalty_limits", "why_batch_rests"]


class DraftLimits:
    """By the table's rules for traffic classes, and by each request's own word."""

    def __init__(self, key_of: Callable[[Any], ClassKey]) -> None:
        """key_of: the class of a request that came in unannounced."""
        self._key_of = key_of
        self._by_class = LimitsByClass()
        self._has_own = False

    def arrived(self, request: Any) -> None:
        """Most servers never see a request that bounds its drafts, and need not ask each of a step."""
        self._has_own = self._has_own or field_of(request).max_draft_tokens is not None

    def of(self, rules: Sequence[ClassLimit], requests: Sequence[Any], number: int) -> list[int] | None:
        """At most ``number`` for each request; None: no request is limited."""
        if not rules and not self._has_own:
            return None
        limits = [self._limit(rules, request, number) for request in requests]
        return limits if min(limits, default=number) < number else None

    def _limit(self, rules: Sequence[ClassLimit], request: Any, number: int) -> int:
        by_rule = None
        if rules:
            key = getattr(request, "specctl_key", None) or self._key_of(request)
            by_rule = self._by_class.of(rules, key)
        limit = smaller(field_of(request).max_draft_tokens, by_rule)
        return number if limit is None else min(limit, number)


def has_own_penalties(request: Any) -> bool:
    """Whether the target's next distribution depends on what the request has emitted, beyond the text."""
    params = request.sampling_params
    return bool(
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or len(request.output_ids) < params.min_new_tokens
    )


def penalty_limits(requests: Sequence[Any], sampling: Any, number: int) -> list[int] | None:
    """Of each request, 0 or ``number``; None: no request is limited. sampling: SGLang's, of the batch."""
    if sampling.acc_additive_penalties is None and sampling.acc_scaling_penalties is None:
        return None
    limits = [0 if has_own_penalties(request) else number for request in requests]
    return limits if 0 in limits else None


def why_batch_rests(sampling: Any, device: str, is_verified_by_ours: Callable[[], bool]) -> str | None:
    """Why nothing may be drafted for a batch; None: it may. sampling: SGLang's, of the batch.

    On a CPU SGLang verifies by the target's most probable token, which is wrong for a sampled request. On a
    GPU its verification leaves min-p out (https://github.com/sgl-project/sglang/issues/10617).
    """
    if sampling.has_custom_logit_processor:
        return "SGLang verifies drafts without custom logit processors"
    if sampling.is_all_greedy:
        return None
    if device == "cpu":
        return "SGLang verifies drafts of sampled requests greedily on a CPU"
    if sampling.need_min_p_sampling and not is_verified_by_ours():
        return "SGLang verifies drafts without min-p"
    return None
