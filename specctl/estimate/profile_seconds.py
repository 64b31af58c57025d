"""Seconds of a step by an engine profile, one step at a time.

Plain Python twin of ``specctl.simulate.costs.step_seconds``, which is compiled for millions of steps.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from specctl.engine_profile import EngineProfile

__all__ = ["ProfileSeconds"]


@dataclass(frozen=True)
class ProfileSeconds:
    profile: EngineProfile

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
        profile, draft = self.profile, self.profile.draft
        tokens, least_s = verified_tokens, 0.0
        if not prefill_tokens:
            tokens, least_s = self._padded(decode_batch, num_speculative_tokens, verified_tokens)
        seconds = (
            self.forward_s(tokens + prefill_tokens)
            + profile.request_s * decode_batch
            + profile.context_token_s * context_tokens
            + profile.prefill_token_s * prefill_tokens
        )
        if num_speculative_tokens == 0:
            return max(seconds, least_s) + draft.at_zero_s
        drafting_s = draft.base_s + draft.request_s * decode_batch + draft.pass_s * num_speculative_tokens
        return max(seconds, least_s) + drafting_s

    def forward_s(self, tokens: float) -> float:
        """The line through the profile's points, continued beyond both ends by the outer pieces."""
        points = self.profile.forward
        at = bisect_left(points, tokens, key=lambda point: point.tokens)
        low, high = points[max(at, 1) - 1 : max(at, 1) + 1] if at < len(points) else points[-2:]
        share = (tokens - low.tokens) / (high.tokens - low.tokens)
        return low.seconds + (high.seconds - low.seconds) * share

    def _padded(
        self, decode_batch: float, num_speculative_tokens: int, verified_tokens: float
    ) -> tuple[float, float]:
        """Tokens of the graph that a decode-only step runs as, and the seconds that it takes at least."""
        sizes = self.profile.graph_requests
        at = bisect_left(sizes, decode_batch)
        requests = sizes[at] if at < len(sizes) else decode_batch
        if requests * (1 + num_speculative_tokens) <= self.profile.graph_tokens_max:
            return verified_tokens * requests / max(decode_batch, 1.0), 0.0
        return verified_tokens, self.profile.ungraphed_min_s
