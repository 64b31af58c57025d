"""Seconds of a step by a machine's cost curve, one step at a time.

Plain Python twin of ``specctl.simulate.costs.step_seconds``, which is compiled for millions of steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from specctl.engine_profile import DraftCost, EngineProfile
from specctl.estimate.cost_fit import FittedCosts

__all__ = ["CostCurve"]

# Share by which a profile's seconds are usually off, where it does not tell.
MISS_RATIO = 0.05
MISS_MIN_RATIO = 0.01


@dataclass(frozen=True)
class CostCurve:
    """``tokens``, ``seconds``: the forward pass, a line in pieces. ``miss_ratio``: how far it is usually off.

    ``decode_batch_most``: the largest that it was measured with; None: not told. Other fields as in
    ``EngineProfile``.
    """

    tokens: tuple[float, ...]
    seconds: tuple[float, ...]
    request_s: float
    context_token_s: float
    prefill_token_s: float
    prefill_step_s: float
    draft: DraftCost
    graph_requests: tuple[int, ...] = ()
    graph_tokens_max: int = 0
    ungraphed_min_s: float = 0.0
    jitter_ratio: float = 0.0
    miss_ratio: float = MISS_RATIO
    decode_batch_most: float | None = None

    @classmethod
    def of_profile(cls, profile: EngineProfile) -> Self:
        measured = profile.measured
        return cls(
            tokens=tuple(float(point.tokens) for point in profile.forward),
            seconds=tuple(point.seconds for point in profile.forward),
            request_s=profile.request_s,
            context_token_s=profile.context_token_s,
            prefill_token_s=profile.prefill_token_s,
            prefill_step_s=profile.prefill_step_s,
            draft=profile.draft,
            graph_requests=profile.graph_requests,
            graph_tokens_max=profile.graph_tokens_max,
            ungraphed_min_s=profile.ungraphed_min_s,
            jitter_ratio=profile.jitter_ratio,
            miss_ratio=MISS_RATIO if measured is None else max(measured.miss_ratio, MISS_MIN_RATIO),
            decode_batch_most=None if measured is None else float(measured.decode_batch_most),
        )

    @classmethod
    def of_fit(cls, costs: FittedCosts, decode_batch_most: float) -> Self:
        return cls(
            tokens=tuple(float(tokens) for tokens, _ in costs.forward),
            seconds=tuple(seconds for _, seconds in costs.forward),
            request_s=costs.request_s,
            context_token_s=costs.context_token_s,
            prefill_token_s=costs.prefill_token_s,
            prefill_step_s=costs.prefill_step_s,
            draft=DraftCost(
                base_s=costs.draft_base_s,
                request_s=costs.draft_request_s,
                pass_s=costs.draft_pass_s,
                at_zero_s=costs.draft_at_zero_s,
            ),
            jitter_ratio=costs.jitter_ratio,
            miss_ratio=max(costs.miss_ratio, MISS_MIN_RATIO),
            decode_batch_most=decode_batch_most,
        )

    def step_s(
        self,
        decode_batch: float,
        num_speculative_tokens: int,
        verified_tokens: float,
        context_tokens: float,
        prefill_tokens: float = 0.0,
    ) -> float:
        """
        Args:
            verified_tokens: positions that the target scores for decoding requests, all together.
            context_tokens: of the decoding requests, all together.
            prefill_tokens: of prompts in the step; 0: a decode-only step, padded to its graph.
        """
        shared_s = self.shared_s(decode_batch, context_tokens)
        if prefill_tokens:
            drafting_s = self._drafting_s(decode_batch, num_speculative_tokens)
            return (
                shared_s
                + self.forward_s(verified_tokens + prefill_tokens)
                + self.prefill_token_s * prefill_tokens
                + self.prefill_step_s
                + drafting_s
            )
        return self.alone_s(decode_batch, num_speculative_tokens, verified_tokens, shared_s)

    def shared_s(self, decode_batch: float, context_tokens: float) -> float:
        """What a step takes whatever is drafted."""
        return self.request_s * decode_batch + self.context_token_s * context_tokens

    def alone_s(
        self, decode_batch: float, num_speculative_tokens: int, verified_tokens: float, shared_s: float
    ) -> float:
        """Of a decode-only step. ``shared_s``: as told by the method of that name."""
        tokens, least_s = self._padded(decode_batch, num_speculative_tokens, verified_tokens)
        seconds = max(self.forward_s(tokens) + shared_s, least_s)
        return seconds + self._drafting_s(decode_batch, num_speculative_tokens)

    def alone_each_s(
        self, decode_batch: float, verified_tokens: Mapping[int, float], shared_s: float
    ) -> list[float]:
        """``alone_s`` of several settings: a decision asks for a hundred of them.

        Args:
            verified_tokens: by num_speculative_tokens.
        """
        if self.graph_requests:
            return [self.alone_s(decode_batch, k, v, shared_s) for k, v in verified_tokens.items()]
        points, seconds, last = self.tokens, self.seconds, len(self.tokens) - 1
        least_s, draft = self.ungraphed_min_s, self.draft
        drafting_s = draft.base_s + draft.request_s * decode_batch
        each = []
        for k, tokens in verified_tokens.items():
            at = min(max(bisect_left(points, tokens), 1), last)
            low, low_s = points[at - 1], seconds[at - 1]
            forward_s = low_s + (seconds[at] - low_s) * (tokens - low) / (points[at] - low)
            step_s = max(forward_s + shared_s, least_s)
            each.append(step_s + (drafting_s + draft.pass_s * k if k else draft.at_zero_s))
        return each

    def _drafting_s(self, decode_batch: float, num_speculative_tokens: int) -> float:
        draft = self.draft
        if num_speculative_tokens == 0:
            return draft.at_zero_s
        return draft.base_s + draft.request_s * decode_batch + draft.pass_s * num_speculative_tokens

    def prompts_s(self, prefill_tokens: float) -> float:
        """Of a step with these prompts and nothing else."""
        return self.forward_s(prefill_tokens) + self.prefill_token_s * prefill_tokens + self.prefill_step_s

    def forward_s(self, tokens: float) -> float:
        """The line through the points, continued beyond both ends by the outer pieces."""
        at = min(max(bisect_left(self.tokens, tokens), 1), len(self.tokens) - 1)
        low, high = self.tokens[at - 1], self.tokens[at]
        low_s, high_s = self.seconds[at - 1], self.seconds[at]
        return low_s + (high_s - low_s) * (tokens - low) / (high - low)

    def _padded(
        self, decode_batch: float, num_speculative_tokens: int, verified_tokens: float
    ) -> tuple[float, float]:
        """Tokens of the graph that a decode-only step runs as, and the seconds that it takes at least."""
        sizes = self.graph_requests
        if not sizes:
            return verified_tokens, self.ungraphed_min_s
        at = bisect_left(sizes, decode_batch)
        requests = sizes[at] if at < len(sizes) else decode_batch
        if requests * (1 + num_speculative_tokens) <= self.graph_tokens_max:
            return verified_tokens * requests / max(decode_batch, 1.0), 0.0
        return verified_tokens, self.ungraphed_min_s
