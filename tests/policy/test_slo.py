from __future__ import annotations

from dataclasses import replace

import pytest

from specctl.policy.loader import parse_policy
from specctl.types import BucketChoice, BucketForecast, CandidateForecast, Reason, TtftEstimate

BATCH = 4.0
STEPS = {0: (0.1, 1.0), 4: (0.12, 2.0), 8: (0.2, 2.5)}
"""Seconds of a step and tokens of a request in it: 40, 67, 50 tokens per second; TPOT 100, 60, 80 ms."""
ALONE = TtftEstimate(ttft_s=0.3, step_s=0.12, tokens_per_s=BATCH * 2.0 / 0.12, is_queued=False)


def forecast(ttft: TtftEstimate | None = None, *, present: int = 0, active: bool = True) -> BucketForecast:
    return BucketForecast(
        decode_batch_from=4,
        decode_batch_to=4,
        decode_batch=BATCH,
        present_num_speculative_tokens=present,
        candidates=tuple(
            CandidateForecast(k, step_s, BATCH * tokens / step_s, 0.0, tokens)
            for k, (step_s, tokens) in STEPS.items()
        ),
        is_active=active,
        is_extrapolated=False,
        trials=100.0,
        ttft=ttft,
    )


def decide(seen: BucketForecast, bounds: str) -> BucketChoice:
    policy = parse_policy(f"kind: slo\n{bounds}", "p")
    return policy.decide(seen, since_change_s=60.0, changes_left=9)


def test_ttft_of_another_setting() -> None:
    off, four, eight = forecast().candidates
    assert ALONE.at_s(four) == pytest.approx(0.3)
    assert ALONE.at_s(off) == pytest.approx(0.25)
    assert ALONE.at_s(eight) == pytest.approx(0.5)
    queued = replace(ALONE, is_queued=True)
    assert queued.at_s(off) == pytest.approx(0.3 * (2.0 / 0.12) / (1.0 / 0.1))
    assert queued.at_s(off._replace(step_s=None, tokens_per_s=None)) is None


@pytest.mark.parametrize(
    ("ttft", "present", "bounds", "value", "reason"),
    [
        (None, 0, "max_tpot_ms: 90", 4, Reason.LATENCY_BOUND),
        (None, 4, "max_tpot_ms: 90", 4, Reason.NO_BETTER),
        (None, 8, "max_tpot_ms: 500", 4, Reason.GAIN),
        (ALONE, 4, "max_ttft_ms: 260", 0, Reason.LATENCY_BOUND),
        (ALONE, 0, "max_ttft_ms: 260", 0, Reason.OFF_NO_GAIN),
        (ALONE, 8, "max_ttft_ms: 400", 4, Reason.LATENCY_BOUND),
        (replace(ALONE, is_queued=True), 0, "max_ttft_ms: 400", 4, Reason.LATENCY_BOUND),
    ],
    ids=[
        "present too slow", "already", "plain gain", "drafts make requests wait", "stays off",
        "fewer drafts", "a queue wants drafts",
    ],
)  # fmt: skip
def test_the_most_tokens_within_the_bounds(
    ttft: TtftEstimate | None, present: int, bounds: str, value: int, reason: Reason
) -> None:
    choice = decide(forecast(ttft, present=present), bounds)
    assert (choice.num_speculative_tokens, choice.reason) == (value, reason)


def test_no_setting_meets_the_bounds() -> None:
    """TPOT 100, 60, 80 ms against 50; TTFT 250, 300, 500 ms against 100: the worst bound decides."""
    choice = decide(forecast(ALONE, present=8), "max_tpot_ms: 50\nmax_ttft_ms: 100")
    assert (choice.num_speculative_tokens, choice.reason) == (0, Reason.LATENCY_BOUND)
    assert "breaks them least" in choice.detail
    assert decide(forecast(ALONE, present=8), "max_tpot_ms: 50").num_speculative_tokens == 4


def test_the_present_one_stays_when_another_breaks_the_bounds_hardly_less() -> None:
    seen = forecast(present=8)
    off, four, eight = seen.candidates
    near = four._replace(step_s=0.159, tokens_per_s=BATCH * 2.0 / 0.159)
    choice = decide(seen._replace(candidates=(off, near, eight)), "max_tpot_ms: 50")
    assert (choice.num_speculative_tokens, choice.reason) == (8, Reason.LATENCY_BOUND)


def test_an_unknown_ttft_is_told_and_does_not_count() -> None:
    choice = decide(forecast(present=4), "max_ttft_ms: 1\nmax_tpot_ms: 90")
    assert (choice.num_speculative_tokens, choice.reason) == (4, Reason.NO_BETTER)
    assert "not measured" in choice.detail
    assert decide(forecast(present=4, active=False), "max_ttft_ms: 1").detail == ""
