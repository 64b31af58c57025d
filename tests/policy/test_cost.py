from __future__ import annotations

import pytest
from specctl.policy.cost import CostPolicy

from specctl.policy.loader import parse_policy
from specctl.types import BucketChoice, BucketForecast, CandidateForecast, Reason

PLAIN = "server_price_per_hour: 3.6"
METERED = f"{PLAIN}\nenergy_price_per_kwh: 3.6\njoules_per_verified_token: 100"
"""0.001 per second and 0.0001 per verified token."""


def forecast(*, present: int = 0, batch: float = 10.0) -> BucketForecast:
    """Steps of 1, 1.2, 1.6 s with 1, 1.5, 1.8 tokens of a request: 10, 12.5, 11.25 tokens per second."""
    return BucketForecast(
        decode_batch_from=10,
        decode_batch_to=10,
        decode_batch=batch,
        present_num_speculative_tokens=present,
        candidates=tuple(
            CandidateForecast(
                k, step_s, batch * tokens / step_s, 0.0, tokens, verified_tokens=batch * (1.0 + k)
            )
            for k, step_s, tokens in ((0, 1.0, 1.0), (2, 1.2, 1.5), (4, 1.6, 1.8))
        ),
        is_active=True,
        is_extrapolated=False,
        trials=100.0,
    )


def policy(prices: str) -> CostPolicy:
    made = parse_policy(f"kind: cost\n{prices}", "p")
    assert isinstance(made, CostPolicy)
    return made


def decide(seen: BucketForecast, prices: str) -> BucketChoice:
    return policy(prices).decide(seen, since_change_s=60.0, changes_left=9)


def test_cost_of_a_token() -> None:
    seen = forecast()
    off, two, _ = seen.candidates
    assert policy(PLAIN).cost_per_token(seen, off) == pytest.approx(0.001 / 10)
    assert policy(METERED).cost_per_token(seen, off) == pytest.approx((0.001 + 0.0001 * 10) / 10)
    idle = f"{METERED}\nidle_power_w: 1000"
    assert policy(idle).cost_per_token(seen, two) == pytest.approx((0.0012 + 0.0012 + 0.003) / 15)
    assert policy(PLAIN).cost_per_token(seen, off._replace(step_s=None)) is None
    assert policy(METERED).cost_per_token(seen, off._replace(verified_tokens=None)) is None


@pytest.mark.parametrize("present", [0, 2, 4])
def test_without_energy_it_chooses_as_goodput(present: int) -> None:
    seen = forecast(present=present)
    goodput = parse_policy("kind: goodput", "p").decide(seen, since_change_s=60.0, changes_left=9)
    assert decide(seen, PLAIN)._replace(detail="") == goodput


def test_energy_makes_drafting_dearer_than_it_is_slow() -> None:
    choice = decide(forecast(present=2), METERED)
    assert (choice.num_speculative_tokens, choice.reason) == (0, Reason.OFF_NO_GAIN)
    assert choice.predicted_tokens_per_s == pytest.approx(10.0)
    assert choice.present_tokens_per_s == pytest.approx(12.5)
    assert choice.detail == "200 instead of 280 per million tokens"


def test_the_guard_rails_weigh_money() -> None:
    """4 -> 2 drafts is 24 % cheaper per token here, and 11 % faster."""
    prices = METERED + "\nguard_rails: {min_gain_ratio: 0.2, num_speculative_tokens_min: 1}"
    choice = decide(forecast(present=4), prices)
    assert (choice.num_speculative_tokens, choice.reason) == (2, Reason.GAIN)


def test_a_latency_bound_comes_before_the_price() -> None:
    choice = decide(forecast(), METERED + "\nmax_tpot_ms: 900")
    assert (choice.num_speculative_tokens, choice.reason) == (2, Reason.LATENCY_BOUND)
    assert decide(forecast(present=4), METERED + "\nmax_tpot_ms: 1").num_speculative_tokens == 2


def test_without_verified_tokens_a_metered_server_changes_nothing() -> None:
    seen = forecast(present=2)
    blind = tuple(candidate._replace(verified_tokens=None) for candidate in seen.candidates)
    choice = decide(seen._replace(candidates=blind), METERED)
    assert (choice.num_speculative_tokens, choice.reason) == (2, Reason.COST_UNKNOWN)
