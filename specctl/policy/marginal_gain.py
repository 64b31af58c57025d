"""How likely a drafted token must be to be accepted, so that its verification pays. Pure.

A step gives N tokens in T seconds. One more verified token gives p more in dt more, and (N + p) / (T + dt) is
over N / T where p is over dt x N / T. Tokens per second are the goodput of Liu et al. (arXiv 2406.14066),
weighed there for whole drafts.
"""

from __future__ import annotations

from specctl.types import BucketForecast, CandidateForecast

__all__ = ["worth_verifying"]


def worth_verifying(forecast: BucketForecast, num_speculative_tokens: int) -> float | None:
    """The least probability from 0 to 1, at that setting's predicted tokens per second; None: not known."""
    chosen = forecast.candidate(num_speculative_tokens)
    more_s = _seconds_of_one_more(forecast.candidates, num_speculative_tokens)
    if chosen is None or chosen.tokens_per_s is None or more_s is None:
        return None
    return min(max(more_s * chosen.tokens_per_s, 0.0), 1.0)


def _seconds_of_one_more(candidates: tuple[CandidateForecast, ...], number: int) -> float | None:
    """From the smallest drafting setting to this one, or to the one above it: what drafting takes in any case
    is in both."""
    told = [
        (one.num_speculative_tokens, one.verified_tokens, one.step_s)
        for one in candidates
        if one.verified_tokens is not None and one.step_s is not None
    ]
    drafting = [one for one in told if one[0] > 0]
    spans = drafting if len(drafting) > 1 else told
    if len(spans) < 2:
        return None
    first = spans[0]
    last = next((one for one in spans[1:] if one[0] >= number), spans[-1])
    tokens, seconds = last[1] - first[1], last[2] - first[2]
    return seconds / tokens if tokens > 0 else None
