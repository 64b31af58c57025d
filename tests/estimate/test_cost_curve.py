"""The curve that the daemon predicts with is the one that the simulator takes steps by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specctl.engine_profile import DraftCost, EngineProfile, ForwardPoint, load_profile
from specctl.estimate.cost_curve import CostCurve
from specctl.simulate.costs import step_seconds
from specctl.simulate.files import find_file
from specctl.simulate.state import new_costs, new_server

# The sums are ordered otherwise in the compiled twin.
REL_TOLERANCE = 1e-12

H200 = load_profile(find_file("h200-llama8b-vllm032", "profiles"))
# Every cost but the pairs', which a curve leaves out: they are the same for all settings of a step.
MADE = EngineProfile.model_validate(
    {
        **H200.model_dump(),
        "forward": tuple(
            ForwardPoint(tokens=n, seconds=s) for n, s in ((2, 0.004), (64, 0.005), (900, 0.03))
        ),
        "request_s": 3e-6,
        "context_token_s": 4e-8,
        "prefill_token_s": 2e-6,
        "prefill_step_s": 4e-3,
        "prefill_pair_s": 0.0,
        "graph_requests": (1, 4, 40),
        "graph_tokens_max": 160,
        "ungraphed_min_s": 0.0125,
        "draft": DraftCost(base_s=1e-4, request_s=2e-6, pass_s=3e-4, at_zero_s=5e-5),
    }
)


@pytest.mark.parametrize("profile", [H200, MADE], ids=["shipped", "every cost"])
@pytest.mark.parametrize("context_each", [0, 1_731])
@pytest.mark.parametrize("prefill", [0, 1, 2_000, 9_000])
@pytest.mark.parametrize("drafts", [0, 1, 3, 8])
@pytest.mark.parametrize("batch", [1, 3, 33, 40, 41, 256])
def test_a_step_takes_what_it_takes_in_the_simulator(
    profile: EngineProfile, batch: int, drafts: int, prefill: int, context_each: int
) -> None:
    context = batch * context_each
    curve = CostCurve.of_profile(profile)
    limits = new_server(profile, requests=1, seed=0).limits
    expected_s = step_seconds(new_costs(profile), limits, batch, drafts, context, prefill, 0.0)
    told_s = curve.step_s(batch, drafts, batch * (1 + drafts), context, prefill)
    assert told_s == pytest.approx(expected_s, rel=REL_TOLERANCE)


def test_a_padded_step_costs_what_its_graph_costs() -> None:
    curve = CostCurve.of_profile(MADE)
    others_s = 35 * MADE.request_s
    assert curve.step_s(5, 0, 5, 0) == pytest.approx(curve.step_s(40, 0, 40, 0) - others_s)
    # 40 x (1 + 3) tokens still have a graph, 40 x (1 + 4) have none.
    assert curve.step_s(40, 3, 160, 0) < MADE.ungraphed_min_s <= curve.step_s(40, 4, 200, 0)


def test_short_drafts_shrink_with_their_graph() -> None:
    curve = CostCurve.of_profile(MADE)
    full_s, half_s = curve.step_s(20, 3, 80, 0), curve.step_s(20, 3, 40, 0)
    assert full_s - half_s == pytest.approx(curve.forward_s(160) - curve.forward_s(80))


def test_a_profile_tells_how_far_it_is_off_and_for_which_batches() -> None:
    curve = CostCurve.of_profile(H200)
    assert curve.miss_ratio == 0.05
    assert curve.decode_batch_most is None
    assert curve.jitter_ratio == H200.jitter_ratio


@pytest.mark.parametrize("graphs", [(), (1, 4, 40)], ids=["no graphs", "graphs"])
@pytest.mark.parametrize("batch", [1.0, 3.7, 64.0])
def test_several_settings_at_once_cost_what_each_costs_alone(batch: float, graphs: tuple[int, ...]) -> None:
    """To the bit: a replay must not depend on how many settings were asked for."""
    curve = replace(CostCurve.of_profile(MADE), graph_requests=graphs)
    verified = {k: batch * (1.0 + 0.83 * k) for k in (0, 1, 2, 5, 16, 1000)}
    shared_s = curve.shared_s(batch, 812.0 * batch)
    each = [curve.alone_s(batch, k, tokens, shared_s) for k, tokens in verified.items()]
    assert curve.alone_each_s(batch, verified, shared_s) == each
