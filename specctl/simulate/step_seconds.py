"""Seconds of one step of an engine, from what the step holds.

Called as it stands, and compiled with numba: so it uses numbers, loops and indexing only, and calls nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["StepCosts", "step_seconds"]


class StepCosts(NamedTuple):
    """What a step costs on one machine; the fields mean what they mean in ``EngineProfile``.

    The sequences are tuples in plain Python and arrays where the function is compiled.
    """

    tokens: Sequence[float] | npt.NDArray[np.float64]
    seconds: Sequence[float] | npt.NDArray[np.float64]
    graph_requests: Sequence[int] | npt.NDArray[np.int64] = ()
    graph_tokens_max: int = 0
    ungraphed_min_s: float = 0.0
    request_s: float = 0.0
    context_token_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_step_s: float = 0.0
    prefill_pair_s: float = 0.0
    draft_base_s: float = 0.0
    draft_request_s: float = 0.0
    draft_pass_s: float = 0.0
    draft_pass_request_s: float = 0.0
    draft_pass_context_token_s: float = 0.0
    draft_at_zero_s: float = 0.0


def step_seconds(
    costs: StepCosts, decode_batch: float, depth: int, width_tokens: int, verified_tokens: float,
    context_tokens: float, prefill_tokens: float, prefill_pairs: float
) -> float:  # fmt: skip
    """``depth``: num_speculative_tokens; ``width_tokens``: of a request, as graphs are captured.

    Of all decoding requests together: ``verified_tokens``, positions that the target scores; their
    ``context_tokens``. ``prefill_tokens`` of prompts; 0: a decode-only step, which is padded to its graph.
    ``prefill_pairs``: of a prompt token and one before it. A mean batch may be fractional.
    """
    tokens, least_s = verified_tokens, costs.ungraphed_min_s
    if prefill_tokens == 0:
        at, requests = 0, decode_batch
        while at < len(costs.graph_requests) and costs.graph_requests[at] < decode_batch:
            at += 1
        if at < len(costs.graph_requests):
            requests = costs.graph_requests[at]
        if requests * width_tokens <= costs.graph_tokens_max:
            tokens, least_s = verified_tokens * (requests / max(decode_batch, 1.0)), 0.0
    tokens += prefill_tokens
    high = 1
    while high < len(costs.tokens) - 1 and costs.tokens[high] < tokens:
        high += 1
    low = high - 1
    slope = (costs.seconds[high] - costs.seconds[low]) / (costs.tokens[high] - costs.tokens[low])
    seconds = costs.seconds[low] + slope * (tokens - costs.tokens[low])
    seconds += costs.request_s * decode_batch + costs.context_token_s * context_tokens
    if prefill_tokens > 0:
        seconds += costs.prefill_token_s * prefill_tokens + costs.prefill_pair_s * prefill_pairs
        seconds += costs.prefill_step_s
    seconds = max(seconds, least_s)
    if depth == 0 or decode_batch == 0:
        return seconds + costs.draft_at_zero_s
    one_pass_s = costs.draft_pass_s + costs.draft_pass_request_s * decode_batch
    one_pass_s += costs.draft_pass_context_token_s * context_tokens
    return seconds + costs.draft_base_s + costs.draft_request_s * decode_batch + one_pass_s * depth
