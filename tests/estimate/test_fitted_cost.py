"""A curve fitted to a server whose own curve is known."""

from __future__ import annotations

import random
from dataclasses import replace

from fakes.observations import cell, observation

from specctl.engine_profile import DraftCost
from specctl.estimate.cost_curve import CostCurve
from specctl.estimate.fitted_cost import FIT_FIRST, ROWS_MAX, FittedStepCost
from specctl.estimate.step_cost import DiscountedStepCost
from specctl.types import CellDelta

TRUE = CostCurve(
    tokens=(1.0, 64.0, 512.0, 4096.0),
    seconds=(0.005, 0.006, 0.015, 0.1),
    request_s=1e-5,
    context_token_s=0.0,
    prefill_token_s=0.0,
    prefill_step_s=0.0,
    draft=DraftCost(base_s=4e-4),
)
NOISE_RATIO = 0.02
BUCKETS = (1, 4, 16, 64)


def ran(rng: random.Random, batch: int, drafts: int, prefill: int = 0, steps: int = 20) -> CellDelta:
    verified = batch * (1 + drafts)
    true_s = TRUE.step_s(batch, drafts, verified, 0, prefill)
    return cell(
        decode_batch=batch,
        tokens=drafts,
        accepted_at=(0,) * drafts,
        verified=(verified,) * steps,
        seconds=tuple(true_s * (1 + rng.gauss(0, NOISE_RATIO)) for _ in range(steps)),
        has_prefill=prefill > 0,
        prefill_tokens=steps * prefill,
    )


def looked(
    looks: int,
    drafts: tuple[int, ...],
    batches: tuple[int, ...] = BUCKETS,
    start: FittedStepCost | None = None,
) -> FittedStepCost:
    """Looks at the bucket and the number of drafts in turn, every third one with prompts too."""
    rng, model = random.Random(1), start or FittedStepCost()
    for look in range(looks):
        batch, k = batches[look % len(batches)], drafts[look // len(batches) % len(drafts)]
        cells = [ran(rng, batch, k)]
        if look % 3 == 0:
            cells.append(ran(rng, batch, k, prefill=rng.randint(100, 3000)))
        model = model.updated(observation(*cells))
    return model


def miss(model: FittedStepCost, batch: int, drafts: int) -> float:
    verified = batch * (1 + drafts)
    step_s = model.step_cost(batch, batch, drafts, verified).step_s
    assert step_s is not None
    return abs(step_s / TRUE.step_s(batch, drafts, verified, 0) - 1.0)


def test_a_server_is_told_within_some_dozen_looks() -> None:
    model = looked(48, (2, 5, 0))
    assert model.fitted is not None
    assert max(miss(model, batch, k) for batch in BUCKETS for k in (0, 1, 3, 5, 8)) < 0.05
    assert all(model.step_cost(b, b, k, b * (1 + k)).is_measured for b in BUCKETS for k in (0, 8))


def test_off_is_known_once_it_was_seen() -> None:
    blind = looked(48, (2, 5))
    assert blind.fitted is not None
    assert not blind.step_cost(16, 16, 0, 16).is_measured
    assert blind.step_cost(16, 16, 3, 64).is_measured
    seen = looked(48, (2, 5, 0))
    assert seen.step_cost(16, 16, 0, 16).is_measured


def test_without_spread_the_cells_stand_in() -> None:
    model = looked(40, (0,), batches=(4,))
    assert model.fitted is None
    assert model.step_cost(4, 4, 0, 4) == model.by_cells.step_cost(4, 4, 0, 4)
    assert model.step_cost(4, 4, 4, 20).step_s is None
    assert model.is_bucket_measured(4)
    assert model.looks < FIT_FIRST, "a look that could tell nothing is not followed by another at once"


def test_a_curve_that_misses_its_own_steps_is_not_used() -> None:
    # Fewer tokens take longer: no curve that never falls holds that.
    falling = [
        cell(decode_batch=batch, tokens=0, accepted_at=(), step_s=seconds)
        for batch, seconds in ((1, 0.04), (4, 0.02), (16, 0.01))
    ]
    model = FittedStepCost()
    for _ in range(20):
        model = model.updated(observation(*falling))
    assert model.fits > 0
    assert model.fitted is None
    assert model.step_cost(4, 4, 0, 4).step_s == model.by_cells.step_cost(4, 4, 0, 4).step_s


def test_the_cells_go_on_beside_the_curve() -> None:
    model, alone = FittedStepCost(), DiscountedStepCost()
    rng = random.Random(6)
    for look in range(20):
        seen = observation(ran(rng, BUCKETS[look % 4], (0, 4)[look % 2]))
        model, alone = model.updated(seen), alone.updated(seen)
    assert model.fitted is not None
    assert model.by_cells == alone


def test_rows_stay_bounded() -> None:
    rng, model = random.Random(3), FittedStepCost()
    row = ran(rng, 4, 2)
    model = model.updated(observation(*[row] * (ROWS_MAX + 7)))
    assert len(model.rows) == ROWS_MAX


def test_nothing_counted_changes_nothing() -> None:
    model = looked(5, (2,))
    assert model.updated(observation(interval_s=None)) is model
    assert model.updated(observation()).rows == model.rows


def test_before_any_step_nothing_is_known() -> None:
    told = FittedStepCost().step_cost(1, 1, 4, 5)
    assert told.step_s is None
    assert told.why_unknown


def test_a_profile_stands_until_the_steps_refute_it() -> None:
    model = looked(60, (2, 5, 0), start=FittedStepCost.begun_with(TRUE))
    assert model.is_profile
    assert model.fits == 0
    assert model.fitted is not None
    assert model.fitted.curve is TRUE


def test_a_refuted_profile_gives_way_to_a_fitted_curve() -> None:
    other = replace(TRUE, seconds=tuple(seconds / 8.0 for seconds in TRUE.seconds))
    model = looked(60, (2, 5, 0), start=FittedStepCost.begun_with(other))
    assert not model.is_profile
    assert model.fits > 0
    assert model.fitted is not None
    assert not model.fitted.is_refuted
    assert max(miss(model, batch, k) for batch in BUCKETS for k in (0, 1, 3, 5, 8)) < 0.05
