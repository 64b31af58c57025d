from __future__ import annotations

import random
from dataclasses import replace

import pytest
from fakes.observations import cell, observation

from specctl.estimate.step_cost import DiscountedStepCost
from specctl.types import CellDelta, Observation


def steps(
    *, tokens: int, batch: int = 1, count: int = 40, noise: float = 0.0, seed: int = 1, full: bool = False
) -> CellDelta:
    """A machine of 80 ms + 4 ms a verified token; ``full``: every draft has the full length."""
    rng = random.Random(seed)
    verified = tuple(
        sum(1 + (tokens if full else rng.randint(0, tokens)) for _ in range(batch)) for _ in range(count)
    )
    seconds = tuple((0.08 + 0.004 * v) * (1 + rng.gauss(0, noise)) for v in verified)
    return cell(
        decode_batch=batch, tokens=tokens, verified=verified, seconds=seconds, accepted_at=(0,) * tokens
    )


def after(*seen: Observation) -> DiscountedStepCost:
    model = DiscountedStepCost()
    for one in seen:
        model = model.updated(one)
    return model


def test_nothing_seen_is_unknown() -> None:
    cost = DiscountedStepCost().step_cost(1, 1, 4, 5)
    assert cost.step_s is None
    assert cost.why_unknown


def test_the_slope_comes_from_drafts_of_different_lengths() -> None:
    model = after(observation(steps(tokens=8, noise=0.03)))
    off = model.step_cost(1, 1, 0, 1)
    assert off.step_s == pytest.approx(0.084, rel=0.1)
    assert model.step_cost(1, 1, 8, 9).step_s == pytest.approx(0.116, rel=0.1)
    assert not off.is_measured
    assert model.is_bucket_measured(1)


def test_one_constant_width_leaves_the_slope_unknown() -> None:
    model = after(observation(steps(tokens=4, full=True)))
    assert model.step_cost(1, 1, 4, 5).step_s == pytest.approx(0.1)
    off = model.step_cost(1, 1, 0, 1)
    assert off.step_s is None
    assert "never varied" in (off.why_unknown or "")


def test_two_settings_of_constant_width_give_the_slope() -> None:
    model = after(observation(steps(tokens=4, full=True), steps(tokens=0)))
    assert model.step_cost(1, 1, 2, 3).step_s == pytest.approx(0.092, rel=0.03)


def test_another_bucket_is_extrapolated_but_not_far() -> None:
    model = after(observation(steps(tokens=8), steps(tokens=0)))
    assert model.step_cost(2, 2, 4, 10).step_s == pytest.approx(0.12, rel=0.1)
    assert not model.is_bucket_measured(2)
    far = model.step_cost(64, 64, 8, 576)
    assert far.step_s is None
    assert "beyond" in (far.why_unknown or "")


def test_decode_batch_has_a_cost_of_its_own() -> None:
    slow_batch = cell(decode_batch=4, tokens=0, verified=(4,) * 40, seconds=(0.2,) * 40, accepted_at=())
    model = after(observation(steps(tokens=8), steps(tokens=0), slow_batch))
    assert model.step_cost(4, 4, 0, 4).step_s == pytest.approx(0.2, rel=0.05)
    assert model.step_cost(1, 1, 0, 1).step_s == pytest.approx(0.084, rel=0.1)


def test_faster_with_more_tokens_is_an_impossible_fit() -> None:
    verified = tuple(1 + i % 9 for i in range(90))
    seconds = tuple(0.2 - 0.015 * v for v in verified)
    model = after(observation(cell(tokens=8, verified=verified, seconds=seconds, accepted_at=(0,) * 8)))
    cost = model.step_cost(1, 1, 0, 1)
    assert cost.step_s is None
    assert "impossible" in (cost.why_unknown or "")


def test_prefill_steps_are_left_out() -> None:
    slow = cell(tokens=8, verified=(9,) * 20, seconds=(5.0,) * 20, accepted_at=(0,) * 8, has_prefill=True)
    assert not after(observation(slow)).is_bucket_measured(1)


def test_a_stall_is_not_learned_unless_it_lasts() -> None:
    usual = observation(steps(tokens=8, count=20))
    stalled = cell(tokens=8, verified=(1, 5, 9, 3), seconds=(0.1, 4.0, 0.1, 0.1), accepted_at=(0,) * 8)
    before = after(usual).step_cost(1, 1, 8, 9).step_s
    assert after(usual, observation(stalled)).step_cost(1, 1, 8, 9).step_s == pytest.approx(before, rel=0.01)
    lasting = cell(
        tokens=8, verified=(1, 5, 9, 3) * 4, seconds=(1.0, 1.1, 1.2, 1.0) * 4, accepted_at=(0,) * 8
    )
    slow = after(usual, *[observation(lasting)] * 4).step_cost(1, 1, 8, 9).step_s
    assert slow is not None
    assert slow > 0.9


def test_an_interval_without_steps_changes_nothing() -> None:
    model = after(observation(steps(tokens=8)))
    assert model.updated(observation()) is model


def test_noise_widens_the_error() -> None:
    quiet = after(observation(steps(tokens=8, noise=0.01))).step_cost(1, 1, 8, 9)
    loud = after(observation(steps(tokens=8, noise=0.2))).step_cost(1, 1, 8, 9)
    assert quiet.sigma_ratio < loud.sigma_ratio


def padded(tokens: int, batches: range) -> CellDelta:
    """40 steps of one bucket in a graph of 32 requests: 5 ms + 20 us a padded token, whatever the batch."""
    rows = [batch for batch in batches for _ in range(5)]
    seconds = tuple(0.005 + 2e-5 * 32 * (1 + tokens) for _ in rows)
    verified = tuple(batch * (1 + tokens) for batch in rows)
    made = cell(decode_batch=32, tokens=tokens, verified=verified, seconds=seconds, accepted_at=(0,) * tokens)
    return replace(made, request_steps=sum(rows))


def test_a_batch_that_is_padded_does_not_make_drafts_look_free() -> None:
    alone = [
        cell(tokens=tokens, steps=40, step_s=0.005 + 2e-5 * (1 + tokens), accepted_at=(0,) * tokens)
        for tokens in (0, 4, 8)
    ]
    model = after(observation(padded(8, range(25, 33)), *alone))
    for tokens in (0, 2, 6):
        truth = 0.005 + 2e-5 * 32 * (1 + tokens)
        assert model.step_cost(32, 28, tokens, 28 * (1 + tokens)).step_s == pytest.approx(truth, rel=0.15)


def test_a_fit_that_is_asked_for_late_is_the_fit_of_its_time() -> None:
    """Nobody asks beside a fitted curve; who asks later gets what asking at every look would have given."""
    looks = [
        observation(steps(tokens=tokens, noise=0.05, count=count, seed=count))
        for tokens, count in ((8, 40), (3, 1), (8, 30), (2, 2))
    ]
    asked = late = DiscountedStepCost()
    for seen in looks:
        asked, late = asked.updated(seen), late.updated(seen)
        assert asked.pooled.slope_s
        assert asked.slopes_s
    assert (late.pooled, late.slopes_s, late.buckets) == (asked.pooled, asked.slopes_s, asked.buckets)
