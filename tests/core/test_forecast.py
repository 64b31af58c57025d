from __future__ import annotations

import numpy as np
import pytest
from fakes.forecasts import cost, forecast_of, space_of
from fakes.observations import chains

SPACE = space_of(chains(0, 1, 2))
NAN = float("nan")


def test_tokens_gained_per_token_of_now_by_hand() -> None:
    """100, 125 and 120 tokens a second: off's second is worth 125 tokens."""
    found = forecast_of(SPACE, (1.0, 1.5, 1.8), cost(SPACE, (0.010, 0.012, 0.015)))
    assert found.gain[0] == pytest.approx([0.0, 0.5 - 125 * 0.002, 0.8 - 125 * 0.005])
    assert found.rate_rows[0] == pytest.approx([100, 125, 120])
    assert found.tokens[0].tolist() == [1.0, 1.5, 1.8]


def test_a_second_is_worth_no_more_than_the_policy_lets_it_give() -> None:
    steps = cost(SPACE, (0.010, 0.012, 0.015))
    free = forecast_of(SPACE, (1.0, 1.5, 3.0), steps)
    bound = forecast_of(SPACE, (1.0, 1.5, 3.0), steps, eligible=(True, True, False))
    assert free.gain[0, 1] < bound.gain[0, 1] == pytest.approx(0.25)


def test_prompts_make_drafts_cheap_whose_seconds_the_prompts_pay_anyway() -> None:
    """Plain steps: 10 and 16 ms. Of a usual step, half full of prompts, drafting takes 3 ms."""
    plain = forecast_of(SPACE, (1.0, 1.5, 1.6), cost(SPACE, (0.010, 0.016, 0.020)))
    mixed = cost(SPACE, (0.010, 0.016, 0.020), mixed_share=0.5, decoding_s=(0.005, 0.008, 0.010))
    with_prompts = forecast_of(SPACE, (1.0, 1.5, 1.6), mixed)
    assert plain.gain[0, 1] < 0 < with_prompts.gain[0, 1]


def test_what_is_not_known_is_not_a_number() -> None:
    found = forecast_of(SPACE, (1.0, 1.5, 1.8), cost(SPACE, (NAN, NAN, NAN)))
    assert np.isnan(found.gain).all()
    assert np.isnan(found.rate_rows).all()


def test_the_error_joins_both_estimates_and_is_none_for_what_is_in_force() -> None:
    exact = forecast_of(SPACE, (1.0, 1.5, 1.8), cost(SPACE, (0.010, 0.012, 0.015)))
    assert exact.sigma.tolist() == [[0.0, 0.0, 0.0]]
    steps = cost(SPACE, (0.010, 0.012, 0.015), sigma=0.01)
    seconds = forecast_of(SPACE, (1.0, 1.5, 1.8), steps).sigma[0, 1]
    assert seconds == pytest.approx(np.hypot(125 * 0.012 * 0.01, 125 * 0.010 * 0.01))
    both = forecast_of(SPACE, (1.0, 1.5, 1.8), steps, variance=0.02**2).sigma[0]
    assert both[1] == pytest.approx(np.hypot(seconds, 0.02 * 1.5))
    assert both[0] == 0.0


def test_what_steps_with_prompts_cost_is_known_from_the_prompts() -> None:
    steps = [cost(SPACE, (0.010, 0.012, 0.015), sigma=0.05, mixed_share=share) for share in (0.0, 0.5, 1.0)]
    sigmas = [forecast_of(SPACE, (1.0, 1.5, 1.8), one).sigma[0, 1] for one in steps]
    assert sigmas[1] == pytest.approx(sigmas[0] / 2)
    assert sigmas[2] == 0.0
