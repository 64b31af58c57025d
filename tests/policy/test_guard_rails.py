from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specctl.policy.loader import parse_policy
from specctl.policy.models import AnyPolicy
from specctl.types import BucketChoice, BucketForecast, CandidateForecast, Reason


def forecast(
    rates: dict[int, float | None],
    *,
    present: int = 0,
    sigma: float = 0.0,
    trials: float = 100.0,
    active: bool = True,
    tokens: float = 2.0,
) -> BucketForecast:
    """``rates``: tokens per second by num_speculative_tokens at one decoding request."""
    return BucketForecast(
        decode_batch_from=1,
        decode_batch_to=1,
        decode_batch=1.0,
        present_num_speculative_tokens=present,
        candidates=tuple(
            CandidateForecast(k, tokens / rate if rate else None, rate, sigma * (k != present), tokens)
            for k, rate in rates.items()
        ),
        is_active=active,
        is_extrapolated=False,
        trials=trials,
        why_unknown="cost not known",
    )  # fmt: skip


def policy(text: str = "kind: goodput") -> AnyPolicy:
    return parse_policy(text, "p.yaml")


def decide(
    seen: BucketForecast, text: str = "kind: goodput", *, since_change_s: float = 60.0, changes_left: int = 9
) -> BucketChoice:
    return policy(text).decide(seen, since_change_s=since_change_s, changes_left=changes_left)


@pytest.mark.parametrize(
    ("seen", "value", "reason"),
    [
        (forecast({0: 10.0, 4: 20.0, 8: 15.0}), 4, Reason.GAIN),
        (forecast({0: 10.0, 4: 20.0}, present=4), 4, Reason.NO_BETTER),
        (forecast({0: 10.0, 4: 10.15}), 0, Reason.WITHIN_NOISE),
        (forecast({0: 10.0, 4: 10.05}), 0, Reason.OFF_NO_GAIN),
        (forecast({0: 10.0, 4: 12.0}, sigma=0.2), 0, Reason.WITHIN_NOISE),
        (forecast({0: 10.0, 4: 9.0}, present=4), 0, Reason.OFF_NO_GAIN),
        (forecast({0: 10.0, 1: 10.5, 8: 9.0}, present=8, sigma=0.5), 0, Reason.OFF_NO_GAIN),
        (forecast({0: 10.0, 4: 20.0}, trials=3), 0, Reason.FEW_SAMPLES),
        (forecast({0: None, 4: None}, present=4), 4, Reason.COST_UNKNOWN),
        (forecast({0: None, 4: None}, present=4, tokens=1.001), 0, Reason.OFF_NO_GAIN),
        (forecast({0: 10.0, 4: 10.4}, active=False), 0, Reason.WITHIN_NOISE),
    ],
    ids=[
        "gain", "best already", "under 2 %", "under 1 %", "under 2 sigma", "off is best", "does not pay",
        "few samples", "no cost", "nothing accepted", "idle bucket",
    ],
)  # fmt: skip
def test_goodput(seen: BucketForecast, value: int, reason: Reason) -> None:
    choice = decide(seen)
    assert (choice.num_speculative_tokens, choice.reason) == (value, reason)


def test_dwell_and_change_rate() -> None:
    seen = forecast({0: 10.0, 4: 20.0})
    assert decide(seen, since_change_s=1.0).reason is Reason.DWELL
    assert decide(seen, changes_left=0).reason is Reason.CHANGE_RATE
    assert decide(seen, since_change_s=2.0, changes_left=1).reason is Reason.GAIN


@pytest.mark.parametrize(
    ("rates", "present", "since_s", "reason"),
    [
        ({2: 100.0, 4: 103.0}, 2, 3.0, Reason.DWELL),
        ({2: 100.0, 4: 103.0}, 2, 19.0, Reason.DWELL),
        ({2: 100.0, 4: 103.0}, 2, 21.0, Reason.GAIN),
        ({2: 100.0, 4: 103.0}, 2, 31.0, Reason.GAIN),
        ({2: 100.0, 4: 125.0}, 2, 3.0, Reason.GAIN),
        ({2: 100.0, 4: 125.0}, 2, 1.0, Reason.DWELL),
        ({0: 103.0, 4: 100.0}, 4, 3.0, Reason.OFF_NO_GAIN),
        ({0: 103.0, 2: 105.0, 4: 100.0}, 4, 3.0, Reason.GAIN),
        ({0: 101.5, 2: 105.0, 4: 100.0}, 4, 3.0, Reason.DWELL),
        ({0: 103.0, 4: 100.0, 8: 105.0}, 4, 3.0, Reason.DWELL),
    ],
    ids=[
        "small and soon", "just too soon", "3 % after 20 s", "patience is over", "large", "dwell comes first",
        "off is faster", "slower than off", "hardly slower than off", "not by more drafts",
    ],
)  # fmt: skip
def test_a_change_must_have_been_worth_its_wait(
    rates: dict[int, float | None], present: int, since_s: float, reason: Reason
) -> None:
    seen = forecast(dict(sorted({0: 90.0, **rates}.items())), present=present)
    assert decide(seen, since_change_s=since_s).reason is reason


def test_patience_is_for_settings_with_traffic_and_can_be_turned_off() -> None:
    rates: dict[int, float | None] = {0: 90.0, 2: 100.0, 4: 115.0}
    assert decide(forecast(rates, present=2, active=False), since_change_s=6.0).reason is Reason.GAIN
    small = forecast({**rates, 4: 103.0}, present=2)
    choice = decide(small, since_change_s=3.0)
    assert choice.detail == "changed 3.0 s ago, 4 tokens would gain +3.0%, so soon 20.0% is needed"
    hasty = "kind: goodput\nguard_rails: {patience_s: 0}"
    assert decide(small, hasty, since_change_s=3.0).reason is Reason.GAIN


def test_latency_bounds() -> None:
    seen = forecast({0: 10.0, 4: 14.0, 8: 9.0}, present=8)
    bound = "kind: goodput\nmax_itl_ms: 210"
    choice = decide(seen, bound)
    assert (choice.num_speculative_tokens, choice.reason) == (4, Reason.LATENCY_BOUND)
    assert decide(seen, "kind: goodput\nmax_tpot_ms: 1").num_speculative_tokens == 4


def test_bounds_hold_for_any_policy() -> None:
    seen = forecast({0: 10.0, 2: 11.0, 4: 20.0}, present=0)
    text = "kind: fixed\nnum_speculative_tokens: 3\nguard_rails: {num_speculative_tokens_max: 3}"
    assert decide(seen, text).num_speculative_tokens == 2
    at_least = "kind: goodput\nguard_rails: {num_speculative_tokens_min: 2}"
    assert decide(forecast({0: 10.0, 2: 5.0, 4: 4.0}), at_least).num_speculative_tokens == 2


def test_off_and_fixed_and_thresholds() -> None:
    seen = forecast({0: None, 2: None, 4: None}, present=4, trials=0)
    assert decide(seen, "kind: off").num_speculative_tokens == 0
    assert decide(seen, "kind: fixed\nnum_speculative_tokens: 2").num_speculative_tokens == 2
    low = "{decode_batch_to: 4, num_speculative_tokens: 2}"
    high = "{decode_batch_to: null, num_speculative_tokens: 0}"
    choice = decide(seen, f"kind: thresholds\nthresholds: [{low}, {high}]")
    assert (choice.num_speculative_tokens, choice.reason) == (2, Reason.SET_BY_POLICY)


def test_candidates_are_legal_and_within_bounds() -> None:
    narrow = policy("kind: goodput\nguard_rails: {num_speculative_tokens_max: 5}")
    assert narrow.candidates((0, 1, 2, 4, 8)) == (0, 1, 2, 4)
    chosen = policy("kind: goodput\nnum_speculative_tokens_candidates: [4, 7]")
    assert chosen.candidates((0, 1, 2, 4, 8)) == (0, 4)
    assert policy().candidates(()) == (0,)


@given(
    st.dictionaries(st.integers(0, 16), st.none() | st.floats(0.1, 1e6), max_size=6),
    st.integers(0, 20),
    st.floats(0, 5),
    st.floats(0, 100),
    st.floats(0, 100),
    st.integers(0, 3),
)
def test_a_decision_is_the_present_value_or_within_the_bounds(
    rates: dict[int, float | None], present: int, sigma: float, trials: float, since_s: float, left: int
) -> None:
    rates = dict(sorted({0: 10.0, **rates}.items()))
    choice = decide(
        forecast(rates, present=present, sigma=sigma, trials=trials),
        since_change_s=since_s,
        changes_left=left,
    )
    assert choice.num_speculative_tokens in {present, *rates}
    is_outside = present > policy().guard_rails.num_speculative_tokens_max
    assert not choice.is_change or left > 0 or is_outside
