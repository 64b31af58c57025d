"""From which chance on a drafted token pays for its verification."""

from __future__ import annotations

import pytest
from specctl.policy.marginal_gain import worth_verifying

from specctl.policy.loader import parse_policy
from specctl.types import BucketForecast, CandidateForecast

ONE_S, STEP_S = 2e-4, 6e-3


def forecast(batch: float, emitted: tuple[float, ...], one_s: float | None = ONE_S) -> BucketForecast:
    """Off and 1, 2, ... drafts: STEP_S a step, a millisecond for drafting at all, one_s a verified token."""
    candidates = []
    for number, tokens in enumerate(emitted):
        verified = batch * (1 + number)
        step_s = None if one_s is None else STEP_S + 1e-3 * (number > 0) + one_s * batch * number
        rate = None if step_s is None else batch * tokens / step_s
        candidates.append(CandidateForecast(number, step_s, rate, 0.0, tokens, verified_tokens=verified))
    return BucketForecast(1, 8, batch, 1, tuple(candidates), True, False, 100.0)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("batch", [1.0, 8.0, 200.0])
def test_a_token_of_that_chance_changes_nothing(batch: float, number: int) -> None:
    emitted = (1.0, 1.8, 2.4, 2.8)
    least = worth_verifying(forecast(batch, emitted), number)
    tokens, seconds = batch * emitted[number], STEP_S + 1e-3 + ONE_S * batch * number
    assert least == pytest.approx(min(ONE_S * tokens / seconds, 1.0))
    if least is not None and least < 0.9:
        rate = tokens / seconds
        assert (
            (tokens + least + 0.05) / (seconds + ONE_S) > rate > (tokens + least - 0.05) / (seconds + ONE_S)
        )


def test_off_is_weighed_at_its_own_speed() -> None:
    one = forecast(8.0, (1.0, 1.8, 2.4))
    assert worth_verifying(one, 0) == pytest.approx(ONE_S * 8 / STEP_S)


def test_fuller_batches_ask_for_more() -> None:
    asked = [worth_verifying(forecast(batch, (1.0, 1.5, 1.8)), 2) for batch in (1.0, 4.0, 16.0, 64.0)]
    assert asked == sorted(asked, key=float)
    assert asked[0] < 0.1 < asked[-1]


def test_what_is_not_known_is_not_guessed() -> None:
    assert worth_verifying(forecast(8.0, (1.0, 1.8), one_s=None), 1) is None
    assert worth_verifying(forecast(8.0, (1.0,)), 0) is None
    assert worth_verifying(forecast(8.0, (1.0, 1.8)), 7) is None
    free = forecast(8.0, (1.0, 1.8, 2.4), one_s=-1e-5)
    assert worth_verifying(free, 2) == 0.0


def test_goodput_weighs_tokens_unless_told_otherwise() -> None:
    usual = parse_policy("kind: goodput", "p")
    assert usual.weighs_tokens
    assert usual.min_token_prob(forecast(8.0, (1.0, 1.8)), 1) is not None
    assert not parse_policy("kind: goodput\nmarginal_gain: false", "p").weighs_tokens
    plain = parse_policy("kind: fixed\nnum_speculative_tokens: 3", "p")
    assert (plain.weighs_tokens, plain.min_token_prob(forecast(8.0, (1.0, 1.8)), 1)) == (False, None)
