"""From which probability on a drafted token pays for its verification."""

from __future__ import annotations

import pytest
from fakes.forecasts import cost, forecast_of, space_of
from fakes.observations import chains, tree

from specctl.contract.setting import Setting
from specctl.core.forecast import Forecast
from specctl.core.messages import Choice, Reason
from specctl.core.thresholds import HALF_LIFE_S, STEPS, BreakEven, Thresholds, break_even_prob

SPACE = space_of((*chains(0, 1, 2, 4), tree(2, 2, 5)))
ONE_S, STEP_S, DRAFT_S = 2e-4, 6e-3, 1e-3
EMITTED = (1.0, 1.8, 2.4, 3.0, 2.6)
NAN = float("nan")


def expects(batch: float, one_s: float = ONE_S) -> Forecast:
    """Settings of 1, 2, 3, 5 (a chain) and 5 (a tree) positions; drafting takes a millisecond."""
    step_s = tuple(
        STEP_S + DRAFT_S * bool(depth) + one_s * batch * (width - 1)
        for depth, width in zip(SPACE.depth.tolist(), SPACE.width.tolist(), strict=True)
    )
    return forecast_of(SPACE, EMITTED, cost(SPACE, step_s, batch=batch))


def prob_of(forecast: Forecast, setting: int) -> float:
    found = break_even_prob(forecast, 0, setting)
    assert found is not None
    return found.prob


@pytest.mark.parametrize("batch", [1.0, 8.0, 200.0])
@pytest.mark.parametrize("setting", [1, 2, 3])
def test_a_token_of_that_probability_changes_nothing(batch: float, setting: int) -> None:
    found = prob_of(expects(batch), setting)
    tokens = batch * float(expects(batch).acceptance.emitted[setting])
    seconds = float(expects(batch).cost.step_s[0, setting])
    assert found == pytest.approx(min(ONE_S * tokens / seconds, 1.0))
    if found < 0.9:
        rate = tokens / seconds
        assert (
            (tokens + found + 0.05) / (seconds + ONE_S) > rate > (tokens + found - 0.05) / (seconds + ONE_S)
        )


def test_what_drafting_takes_in_any_case_is_left_out() -> None:
    """Off is weighed at its own speed, and its step is no part of what a token costs."""
    assert prob_of(expects(8.0), 0) == pytest.approx(ONE_S * 8 / STEP_S)


def test_fuller_batches_ask_for_more() -> None:
    asked = [prob_of(expects(batch), 3) for batch in (1.0, 4.0, 16.0, 64.0)]
    assert asked == sorted(asked)
    assert asked[0] < 0.2 < asked[-1]


def test_what_is_not_known_is_not_guessed() -> None:
    unknown = forecast_of(SPACE, EMITTED, cost(SPACE, (NAN,) * 5))
    assert break_even_prob(unknown, 0, 1) is None
    only_one = space_of(chains(0, 2))
    lonely = forecast_of(only_one, (1.0, 1.5), cost(only_one, (0.01, 0.012)))
    assert break_even_prob(lonely, 0, 1) is None
    never_ran = forecast_of(SPACE, EMITTED, cost(SPACE, (0.006,) * 5, measured=False))
    assert break_even_prob(never_ran, 0, 1) is None


def test_tokens_that_cost_nothing_are_all_verified() -> None:
    assert prob_of(expects(8.0, one_s=0.0), 3) == 0.0


def test_noise_under_nothing_counts_as_much_as_noise_over_it() -> None:
    free = expects(8.0, one_s=0.0).cost.step_s[0, 1]
    noisy = [prob_of(expects(8.0, one_s=noise * free), 3) for noise in (-0.02, 0.02)]
    assert noisy[0] < 0.0 < noisy[1]
    found = Thresholds(1)
    for _ in range(100):
        for wanted in (-0.3, 0.34):
            found.pass_time(0.1)
            prob = set_to(found, wanted)
    assert prob is None, "their mean is as good as none"


# The mean, in steps.


def choice(prob: float | None = None, *, is_active: bool = True, last: int = 1) -> Choice:
    setting = Setting(num_speculative_tokens=4, min_token_prob=prob)
    return Choice(1, last, setting, setting, Reason.NO_BETTER, is_active=is_active)


def set_to(
    found: Thresholds,
    wanted: float | None,
    now: float | None = None,
    *,
    error: float = 0.0,
    configured: float = 0.0,
    **more: object,
) -> float | None:
    ceilings = more.pop("ceilings", ())
    asked = None if wanted is None else BreakEven(wanted, error)
    (one,) = found.applied([choice(now, **more)], [asked], configured, ceilings)  # type: ignore[arg-type]
    return one.after.min_token_prob


@pytest.mark.parametrize(
    ("wanted", "now", "configured", "expected"),
    [
        (0.01, None, 0.0, None),
        (0.11, None, 0.0, 0.1),
        (0.3, None, 0.0, 0.4),
        (0.25, None, 0.0, 0.2),
        (1.0, None, 0.0, 0.4),
        (0.15, 0.1, 0.0, 0.1),
        (0.21, 0.1, 0.0, 0.2),
        (0.01, 0.1, 0.0, None),
        (0.01, 0.1, 0.3, 0.0),
        (0.2, None, 0.3, None),
        (None, 0.2, 0.0, 0.2),
    ],
    ids=[
        "as good as none", "nearest step", "nearest by ratio", "below", "the highest step", "near stays",
        "far moves", "back to as configured", "under as configured", "near what is configured", "not known",
    ],
)  # fmt: skip
def test_a_probability_moves_in_steps_and_stays_while_it_is_near(
    wanted: float | None, now: float | None, configured: float, expected: float | None
) -> None:
    assert set_to(Thresholds(1), wanted, now, configured=configured) == expected
    assert expected in (None, now, *STEPS)


def test_a_moment_does_not_turn_it_but_what_lasts_does() -> None:
    found = Thresholds(1)
    assert set_to(found, 0.05) == 0.05
    found.pass_time(1.0)
    assert set_to(found, 0.4, 0.05) == 0.05
    found.pass_time(2 * HALF_LIFE_S)
    assert set_to(found, 0.4, 0.05) == 0.4


def test_what_it_may_be_within_its_error_stays() -> None:
    assert set_to(Thresholds(1), 0.4, 0.1, error=0.31) == 0.1
    assert set_to(Thresholds(1), 0.4, 0.1, error=0.29) == 0.4
    steps = cost(SPACE, tuple(expects(8.0).cost.step_s[0]), sigma=0.1, batch=8.0)
    found = break_even_prob(forecast_of(SPACE, EMITTED, steps), 0, 3)
    assert found is not None
    assert 0.1 < found.error < 0.2


def test_what_was_read_with_a_larger_error_weighs_less() -> None:
    found = Thresholds(1)
    assert set_to(found, 0.9, 0.1, error=0.4) == 0.4
    found.pass_time(0.5)
    assert set_to(found, 0.1, 0.4, error=0.05) == 0.1


def test_asking_again_at_the_same_poll_moves_nothing() -> None:
    found = Thresholds(1)
    set_to(found, 0.1)
    assert [set_to(found, 0.4, 0.1) for _ in range(50)] == [0.1] * 50


def test_a_probability_that_moves_alone_is_the_reason_of_the_change() -> None:
    (alone,) = Thresholds(1).applied([choice()], [BreakEven(0.17, 0.0)], 0.0, ())
    assert (alone.reason, alone.detail) == (Reason.BREAK_EVEN, "probability 0.17")
    fewer = choice()._replace(after=Setting(num_speculative_tokens=2), reason=Reason.GAIN)
    (beside,) = Thresholds(1).applied([fewer], [BreakEven(0.17, 0.0)], 0.0, ())
    assert (beside.reason, beside.after.min_token_prob) == (Reason.GAIN, 0.2)
    (stays,) = Thresholds(1).applied([choice()], [BreakEven(0.01, 0.0)], 0.0, ())
    assert stays.reason is Reason.NO_BETTER


def test_a_bucket_that_drafts_nothing_keeps_what_it_has() -> None:
    found, off = Thresholds(1), Setting(num_speculative_tokens=0)
    rests = choice()._replace(before=off, after=off)
    assert found.applied([rests], [BreakEven(0.17, 0.0)], 0.0, ()) == (rests,)
    assert set_to(found, None) == 0.2, "what it saw meanwhile counts"


def test_an_idle_bucket_keeps_what_it_has() -> None:
    assert set_to(Thresholds(1), 0.4, 0.1, is_active=False) == 0.1


def test_where_more_may_not_be_verified_a_probability_rises_only() -> None:
    assert set_to(Thresholds(1), 0.01, 0.2, ceilings=(1,)) == 0.2
    assert set_to(Thresholds(1), 0.4, 0.1, ceilings=(1,)) == 0.4
    assert set_to(Thresholds(1), 0.01, 0.2, ceilings=(2,)) is None
