"""A profile, corrected by the steps of a server that is like it, slower, or another one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.observations import cell, observation

from specctl.engine_profile import DraftCost
from specctl.estimate.cost_curve import CostCurve
from specctl.estimate.profiled_cost import PRIOR_STEPS_ALONE, ProfiledStepCost
from specctl.types import CellDelta

CURVE = CostCurve(
    tokens=(1.0, 400.0),
    seconds=(0.01, 0.05),
    request_s=1e-4,
    context_token_s=1e-7,
    prefill_token_s=1e-6,
    prefill_step_s=2e-3,
    draft=DraftCost(base_s=5e-4),
)
BUCKETS = (1, 8, 32)
CONTEXT = 500


def predicted_s(batch: int, drafts: int, prefill: int = 0) -> float:
    return CURVE.step_s(batch, drafts, batch * (1 + drafts), batch * CONTEXT, prefill)


def ran(batch: int, drafts: int, *, factor: float = 1.0, steps: int = 20, prefill: int = 0) -> CellDelta:
    """Steps of a server that is ``factor`` x as slow as the curve."""
    return cell(
        steps=steps,
        decode_batch=batch,
        tokens=drafts,
        accepted_at=(0,) * drafts,
        step_s=factor * predicted_s(batch, drafts, prefill),
        has_prefill=prefill > 0,
        prefill_tokens=steps * prefill,
        context_tokens=steps * batch * CONTEXT,
    )


def after(*cells: CellDelta, looks: int = 1, start: ProfiledStepCost | None = None) -> ProfiledStepCost:
    model = start or ProfiledStepCost(CURVE)
    for _ in range(looks):
        model = model.updated(observation(*cells))
    return model


def ratio(model: ProfiledStepCost, batch: int, drafts: int) -> float:
    """Told seconds over the profile's."""
    step_s = model.step_cost(batch, batch, drafts, batch * (1 + drafts)).step_s
    assert step_s is not None
    return step_s / predicted_s(batch, drafts)


def test_before_any_step_the_profile_stands() -> None:
    told = ProfiledStepCost(CURVE).step_cost(8, 8, 4, 40)
    # No step seen, no context known.
    assert told.step_s == CURVE.step_s(8, 4, 40, 0)
    assert told.decoding_s == told.step_s
    assert not told.is_measured
    assert told.sigma_ratio == pytest.approx(CURVE.miss_ratio * (1 - CURVE.step_s(8, 0, 8, 0) / told.step_s))


def test_nothing_counted_changes_nothing() -> None:
    model = after(ran(8, 4))
    assert model.updated(observation(interval_s=None)) is model
    assert model.updated(replace(observation(), cells=None)) is model


def test_a_slower_server_is_learned() -> None:
    model = after(*[ran(batch, k, factor=1.3) for batch in BUCKETS for k in (0, 4)], looks=30)
    for batch in BUCKETS:
        for k in (0, 1, 4, 8):
            assert ratio(model, batch, k) == pytest.approx(1.3, rel=0.02)


def test_one_bucket_moves_itself_more_than_the_others() -> None:
    level = [ran(batch, k) for batch in (1, 32) for k in (0, 4)]
    model = after(*level, ran(8, 4, factor=1.5), looks=20)
    own, sister, other = ratio(model, 8, 4), ratio(model, 8, 0), ratio(model, 32, 4)
    assert 1.4 < own <= 1.5
    assert other < 1.05 < sister <= own


def test_a_stall_moves_little() -> None:
    before = after(ran(8, 4), ran(8, 0), looks=30)
    later = after(ran(8, 4, factor=50.0, steps=5), start=before)
    assert ratio(later, 8, 4) / ratio(before, 8, 4) < 1.05
    assert not later.is_refuted


def test_a_profile_of_quite_another_machine_is_put_aside() -> None:
    model = after(*[ran(batch, k, factor=5.0) for batch in BUCKETS for k in (0, 4)], looks=40)
    assert model.is_refuted
    for batch in BUCKETS:
        wanted = {k: float(batch * (1 + k)) for k in (0, 4)}
        assert model.step_costs(batch, batch, wanted) == model.learned.step_costs(batch, batch, wanted)
        assert ratio(model, batch, 4) == pytest.approx(5.0, rel=0.02)
    assert not model.is_bucket_measured(16)


def test_cells_that_contradict_each_other_refute_the_profile() -> None:
    cells = [ran(1, 0), ran(8, 0, factor=2.5), ran(32, 0, factor=0.45)]
    assert after(*cells, looks=30).is_refuted
    assert not after(*cells).is_refuted, "60 steps are too few to judge by"


def test_what_prompts_take_is_no_cost_of_decoding() -> None:
    model = after(ran(8, 4), ran(8, 4, prefill=300), looks=5)
    told = model.step_cost(8, 8, 4, 40)
    assert told.step_s is not None
    assert told.decoding_s is not None
    alone_s, beside_s = predicted_s(8, 4), predicted_s(8, 4, prefill=300)
    prompts_s = CURVE.prompts_s(300)
    assert told.step_s == pytest.approx(alone_s)
    steps = model.loads[8].steps
    share = steps / 2 / (steps + PRIOR_STEPS_ALONE)
    assert told.decoding_s == pytest.approx((1 - share) * alone_s + share * (beside_s - prompts_s))
    # Both share a forward pass, whose constant the prompts pay.
    assert 0 < told.decoding_s < told.step_s


def test_a_bucket_that_rests_keeps_its_contexts() -> None:
    model = after(ran(8, 4), looks=5)
    rested = after(ran(1, 4), start=model, looks=1200)
    assert rested.step_cost(8, 8, 4, 40).step_s == pytest.approx(predicted_s(8, 4))


def test_off_without_steps_is_known_only_where_the_curve_knows_it() -> None:
    model = after(ran(8, 4), looks=10)
    assert model.step_cost(8, 8, 0, 8).is_measured
    blind = replace(model, knows_off=False)
    assert not blind.step_cost(8, 8, 0, 8).is_measured
    assert blind.step_cost(8, 8, 2, 24).is_measured
    assert after(ran(8, 0), start=blind).step_cost(8, 8, 0, 8).is_measured


def test_a_bucket_far_beyond_the_largest_batch_is_not_measured() -> None:
    assert ProfiledStepCost(CURVE).is_bucket_measured(10_000), "the profile tells no largest batch"
    model = ProfiledStepCost(replace(CURVE, decode_batch_most=16.0))
    assert model.is_bucket_measured(32)
    assert not model.is_bucket_measured(40)


def test_what_a_new_curve_is_asked_for_first_rests_on_the_rows() -> None:
    """Before the next look, contexts and prompts of the rows count already."""
    rows = [ran(8, 4), ran(8, 4, prefill=300)]
    fresh = ProfiledStepCost(CURVE).on(CURVE, rows)
    told, known = fresh.step_cost(8, 8, 4, 40), after(*rows).step_cost(8, 8, 4, 40)
    assert told.step_s == pytest.approx(known.step_s)
    assert told.decoding_s == pytest.approx(known.decoding_s)
    assert after(ran(8, 4)).on(CURVE, rows).loads == after(ran(8, 4)).loads


def test_another_curve_is_corrected_by_the_steps_told() -> None:
    rows = [ran(8, k, factor=1.2, steps=200) for k in (0, 4)]
    moved = ProfiledStepCost(replace(CURVE, request_s=0.0)).on(CURVE, rows)
    assert moved.server_ratio == pytest.approx(1.2, rel=0.02)
    assert moved.server_steps == 400
