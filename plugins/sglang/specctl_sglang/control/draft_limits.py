"""How many tokens may be drafted for each request, where that is less than the table's number.

SGLang verifies drafts with the penalties as they were before the step, and adds one token of each step to
them. With drafts accepted they would lack tokens, so a request with penalties gets no drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["has_own_penalties", "penalty_limits", "why_batch_rests"]


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


def why_batch_rests(sampling: Any, device: str) -> str | None:
    """Why nothing may be drafted for a batch; None: it may.

    On a CPU SGLang verifies by the target's most probable token, which is wrong for a sampled request.
    """
    if sampling.has_custom_logit_processor:
        return "SGLang verifies drafts without custom logit processors"
    if device == "cpu" and not sampling.is_all_greedy:
        return "SGLang verifies drafts of sampled requests greedily on a CPU"
    return None
