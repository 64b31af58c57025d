from __future__ import annotations

import numpy as np
import pytest
from fakes.observations import capabilities, cell, chains, tree
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from specctl.contract.telemetry import TelemetryCell
from specctl.core.prompt_cost import PromptCost
from specctl.core.roofline import Roofline
from specctl.core.space import Space
from specctl.core.step_cost import LEVEL_STEPS, StepCost, StepCostEstimate

EXACT = 1e-12
"""Of a few sums and products of float64."""
SPACE = Space.of(capabilities(chains(0, 1, 2, 4, 8), (1, 2, 4, 8)))
FULL = SPACE.depth.astype(float)
ONE = np.ones(len(FULL))


def steps(tokens: int, step_s: float, *, batch: int = 1, count: int = 10, **more: object) -> TelemetryCell:
    return cell(
        tokens=tokens, step_s=step_s, decode_batch=batch, steps=count, accepted_at=(0,) * tokens, **more
    )  # type: ignore[arg-type]


def after(*intervals: tuple[TelemetryCell, ...], space: Space = SPACE) -> StepCost:
    found = StepCost(space)
    for one in intervals:
        found.update(one, 1.0)
    return found


def estimate(*intervals: tuple[TelemetryCell, ...]) -> StepCostEstimate:
    return after(*intervals).estimate(FULL, ONE)


def test_nothing_seen_is_not_known() -> None:
    found = estimate()
    assert np.isnan(found.step_s).all()
    assert not found.is_measured.any()
    assert found.batch.tolist() == [1.0, 2.0, 3.5, 6.5], "the middle of a bucket, until it was seen"


def test_the_first_steps_are_taken_as_they_are() -> None:
    found = estimate((steps(4, 0.1),))
    assert found.step_s[0, 3] == pytest.approx(0.1, rel=EXACT)
    assert found.is_measured[0].tolist() == [False, False, False, True, False]


def test_a_first_step_that_compiled_is_taken_back_by_the_next_ones() -> None:
    slow, usual = (steps(4, 5.0, count=1),), (steps(4, 0.1, count=9),)
    found = estimate(slow, *(usual,) * 8).step_s[0, 3]
    assert found == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("count", [2, 3, 10, 200])
@pytest.mark.parametrize("stall_s", [0.1, 2.0, 60.0])
def test_the_others_of_a_cell_tell_the_seconds_where_one_step_stalled(count: int, stall_s: float) -> None:
    """Also in the first cell of a setting; a stall that is lost in the mean stays in it."""
    seconds = (0.1 + stall_s, *(0.1,) * (count - 1))
    found = estimate((cell(tokens=4, seconds=seconds, accepted_at=(0,) * 4),)).step_s[0, 3]
    mean = 0.1 + stall_s / count
    assert found == pytest.approx(0.1 if mean > 1.25 * 0.1 else mean, rel=1e-6)


def test_steps_that_scatter_are_no_stall() -> None:
    seconds = (0.06, 0.14) * 20
    found = estimate((cell(tokens=4, seconds=seconds, accepted_at=(0,) * 4),)).step_s[0, 3]
    assert found == pytest.approx(0.1, rel=1e-6)


def drafting(*positions: int, count: int = 4, tokens: int = 4) -> TelemetryCell:
    """Steps of 20 ms and 0.5 ms a position; half of the positions beyond the requests are one depth's."""
    seconds = tuple(0.020 + 0.0005 * one for one in positions) * count
    drafted = sum(one - 8 for one in positions) * count // tokens
    return cell(
        tokens=tokens, decode_batch=8, verified=positions * count, seconds=seconds,
        accepted_at=(0,) * tokens, drafted_at=(drafted,) * tokens,
    )  # fmt: skip


def test_a_setting_that_finds_more_drafts_is_no_slower_machine() -> None:
    """It alone runs: the cost of off, which was sampled before, stays."""
    few, many = (8, 12, 8, 16), (24, 40, 32, 40)
    off = steps(0, 0.024, batch=8, count=2)
    found = after(*((drafting(*few), off),) * 10, *((drafting(*many),),) * 10)
    expected = np.where(FULL > 0, FULL * (34 - 8) / 8 / 4, 0.0)
    estimate = found.estimate(expected, ONE).step_s[3]
    assert estimate[0] == pytest.approx(0.024, rel=0.03)
    assert estimate[3] == pytest.approx(0.020 + 0.0005 * 34, rel=0.03)


def test_measured_seconds_are_those_of_the_drafts_that_are_expected() -> None:
    few = (8, 12, 8, 16)
    found = after(*((drafting(*few),),) * 10)
    now, more = (np.where(FULL > 0, share * FULL, 0.0) for share in (3 / 32, 9 / 32))
    assert found.estimate(now, ONE).step_s[3, 3] == pytest.approx(0.0255, rel=0.02)
    assert found.estimate(more, ONE).step_s[3, 3] == pytest.approx(0.0255 + 0.0005 * 6, rel=0.03)


def test_padding_of_a_shared_width_is_learned_by_batch() -> None:
    """At one request nothing is padded; at 8 each has as many positions as the longest draft asks for."""
    alone = cell(tokens=4, verified=(3,) * 10, step_s=0.02, accepted_at=(0,) * 4, drafted_at=(5,) * 4)
    padded = cell(
        tokens=4, decode_batch=8, verified=(40,) * 10, step_s=0.04, accepted_at=(0,) * 4, drafted_at=(20,) * 4
    )
    found = after(*((alone, padded),) * 20)
    expected = np.where(FULL > 0, FULL / 4, 0.0)
    verified = found.estimate(expected, ONE).verified
    assert verified[0, 3] == pytest.approx(1 * (1 + 1), rel=0.01)
    assert verified[3, 3] == pytest.approx(8 * (1 + 1 * 32 / 8), rel=0.01)
    assert verified[3, 0] == pytest.approx(8.0)


@pytest.mark.parametrize("key", ["verified_tokens_squared", "step_s_by_verified_tokens", "step_s_squared"])
@pytest.mark.parametrize("value", [0.0, 1.7e308])
def test_sums_that_no_steps_have_spoil_nothing(key: str, value: float) -> None:
    few = drafting(8, 12, 8, 16)
    found = after((few,), (few.model_copy(update={key: value}),), *((few,),) * 40)
    estimate = found.estimate(np.where(FULL > 0, 3 / 32 * FULL, 0.0), ONE)
    assert estimate.step_s[3, 3] == pytest.approx(0.0255, rel=0.03)
    assert np.isfinite(estimate.sigma).all()


def test_a_stall_tells_nothing_of_positions() -> None:
    few = (8, 12, 8, 16)
    stalled = cell(
        tokens=4, decode_batch=8, verified=few * 4, accepted_at=(0,) * 4, drafted_at=(12,) * 4,
        seconds=(*[0.020 + 0.0005 * one for one in few * 4][:-1], 2.0),
    )  # fmt: skip
    found = after(*((drafting(*few),),) * 10, (stalled,))
    more = np.where(FULL > 0, 9 / 32 * FULL, 0.0)
    assert found.estimate(more, ONE).step_s[3, 3] == pytest.approx(0.0255 + 0.0005 * 6, rel=0.03)


def test_a_tree_keeps_its_measured_seconds() -> None:
    """How many of its nodes are found is not in the counts by depth."""
    space = Space.of(capabilities((*chains(0, 4), tree(2, 2, 5)), (1, 2, 4, 8)))
    of_tree = cell(tokens=2, topk=2, width=5, decode_batch=8, step_s=0.03, accepted_at=(0, 0))
    found = after(*((drafting(8, 12, 8, 16), of_tree),) * 10, space=space)
    at = space.number_of(of_tree)
    for expected in ((0.0, 4.0, 4.0), (0.0, 4.0, 0.5)):
        seconds = found.estimate(np.array(expected), np.ones(3)).step_s[3]
        assert seconds[at] == pytest.approx(0.03, rel=0.02)


def test_more_positions_are_no_noise_of_the_seconds() -> None:
    varied = after(*((drafting(8, 40, 8, 24),),) * 40)
    alike = after(*((drafting(8, 40, 8, 24, count=1),),) * 40)
    assert varied.estimate(FULL, ONE).sigma[3, 3] < 0.02
    assert alike.estimate(FULL, ONE).sigma[3, 3] < 0.02


def test_the_comparison_stays_right_while_the_machine_gets_slower() -> None:
    """2 and 4 ran together; then everything takes 1.5 times as long, and only 4 runs."""
    both, slower = (steps(2, 0.1), steps(4, 0.12)), (steps(4, 0.18),)
    found = estimate(*(both,) * 20, *(slower,) * 30).step_s[0]
    assert found[3] == pytest.approx(0.18, rel=0.01)
    assert found[2] == pytest.approx(0.15, rel=0.01)


def test_a_setting_that_ran_alone_moves_the_level_and_nothing_else() -> None:
    known = after(*((steps(2, 0.1), steps(4, 0.12)),) * 5)
    before = np.log(known.estimate(FULL, ONE).step_s[0])
    known.update((steps(4, 0.15),), 1.0)
    moved = np.log(known.estimate(FULL, ONE).step_s[0]) - before
    expected = 10 / (10 + LEVEL_STEPS) * np.log(0.15 / 0.12)
    assert moved[[2, 3]] == pytest.approx([expected, expected], rel=1e-9)


@pytest.mark.parametrize("stalled", [4, 0], ids=["setting in force", "sample"])
@pytest.mark.parametrize("stall_s", [0.1, 1.0, 30.0])
def test_a_stall_moves_a_comparison_hardly(stalled: int, stall_s: float) -> None:
    """49 steps of 20 ms, and one sampled step of 15 ms; once, one of them takes longer."""

    def ran(tokens: int, seconds: float, count: int, stall_s: float) -> TelemetryCell:
        each = (*(seconds,) * (count - 1), seconds + stall_s)
        return cell(tokens=tokens, seconds=each, accepted_at=(0,) * tokens)

    usual = (ran(4, 0.02, 49, 0.0), ran(0, 0.015, 1, 0.0))
    known = after(*(usual,) * 40)
    known.update(
        tuple(ran(k, s, n, stall_s * (k == stalled)) for k, s, n in ((4, 0.02, 49), (0, 0.015, 1))), 1.0
    )
    at_once = known.estimate(FULL, ONE).step_s[0]
    for _ in range(3):
        known.update(usual, 1.0)
    soon = known.estimate(FULL, ONE).step_s[0]
    assert at_once[3] / at_once[0] == pytest.approx(0.02 / 0.015, rel=0.12)
    assert soon[3] / soon[0] == pytest.approx(0.02 / 0.015, rel=0.08)
    assert soon[[0, 3]] == pytest.approx([0.015, 0.02], rel=0.08)


def test_what_lasts_is_learned() -> None:
    both = (steps(2, 0.1), steps(4, 0.12))
    slower_drafts = (steps(2, 0.1), steps(4, 0.2))
    found = estimate(*(both,) * 20, *(slower_drafts,) * 60).step_s[0]
    assert found[3] / found[2] == pytest.approx(2.0, rel=0.05)


def test_steps_after_a_rest_and_steps_of_unknown_settings_or_buckets_tell_nothing() -> None:
    foreign = (steps(4, 0.5, after_rest=True), steps(7, 0.5), steps(4, 0.5, bucket=(9, 99)))
    assert np.isnan(estimate(foreign).step_s).all()
    both = estimate((steps(4, 0.1),), (steps(4, 0.1), steps(4, 0.9, after_rest=True)))
    assert both.step_s[0, 3] == pytest.approx(0.1, rel=1e-9)


@pytest.mark.parametrize("step_s", [0.0, 5e-324, 1e-300, 1e300], ids=str)
def test_seconds_that_cannot_be_tell_nothing(step_s: float) -> None:
    found = estimate((steps(4, 0.1), steps(2, step_s)))
    assert found.is_measured[0].tolist() == [False, False, False, True, False]
    assert np.isfinite(found.step_s).all()


def test_a_setting_that_never_ran_follows_the_curve_through_its_neighbours() -> None:
    """A machine of 80 ms and 4 ms a verified token."""
    ran = tuple(steps(depth, 0.08 + 0.004 * (1 + depth)) for depth in (0, 2, 8))
    found = estimate(*(ran,) * 3)
    assert found.step_s[0, [1, 3]] == pytest.approx([0.088, 0.1], rel=0.01)
    assert found.step_s[1, 4] == pytest.approx(0.08 + 0.004 * 18, rel=0.1)
    assert found.sigma[0, 1] > 3 * found.sigma[0, 2]
    assert found.sigma[3, 4] > found.sigma[1, 4] > found.sigma[0, 4], "farther from what ran, less sure"


def test_noise_widens_the_error() -> None:
    quiet = after((cell(tokens=4, seconds=(0.1, 0.101) * 20, accepted_at=(0,) * 4),))
    loud = after((cell(tokens=4, seconds=(0.06, 0.14) * 20, accepted_at=(0,) * 4),))
    assert quiet.estimate(FULL, ONE).sigma[0, 3] < loud.estimate(FULL, ONE).sigma[0, 3]


def test_positions_that_requests_share_count_as_verified() -> None:
    """An engine that pads every request to the longest draft scores more than it drafted."""
    padded = cell(tokens=4, drafted_at=(4, 4, 4, 4), steps=10, verified=(5,) * 10, accepted_at=(0,) * 4)
    found = after(*((padded,),) * 40).estimate(np.array([0.0, 0.4, 0.8, 1.6, 3.2]), ONE)
    assert found.verified[0, 3] == pytest.approx(5.0, rel=0.01)


def test_a_tree_scores_its_width() -> None:
    space = Space.of(capabilities((*chains(0, 2), tree(2, 2, 5)), (1, 2)))
    seen = after((cell(tokens=2, topk=2, width=5, accepted_at=(0, 0), step_s=0.2),), space=space)
    found = seen.estimate(np.array([0.0, 2.0, 4.0]), np.ones(3))
    assert found.step_s[0, 2] == pytest.approx(0.2, rel=EXACT)
    assert found.verified[1].tolist() == [2.0, 6.0, 10.0]


def test_what_decoding_takes_of_steps_with_prompts() -> None:
    """8 steps hold 100 prompt tokens and 5 others and take 0.4 s: 3.8 ms each. Depth 4 verifies 5 tokens."""
    plain = (steps(4, 0.1, count=6), steps(0, 0.09, count=6))
    mixed = steps(4, 0.4, count=8, has_prefill=True, prefill_tokens=800)
    known = after(*(plain,) * 10)
    known.update((*plain, mixed), 1.0)
    found = known.estimate(FULL, ONE)
    assert known.prompt_token_s == pytest.approx(0.4 / 105, rel=1e-6)
    share = found.mixed_share[0]
    kept = 0.5 ** (1 / 20)
    seen = sum(12 * kept**age for age in range(11)) + 8
    assert share == pytest.approx(8 / seen, rel=1e-9)
    expected = (1 - share) * found.step_s[0, 3] + share * 5 * 0.4 / 105
    assert found.decoding_s[0, 3] == pytest.approx(expected, rel=1e-6)


def test_what_comes_with_any_prompt_is_not_what_a_token_computes() -> None:
    """A step with 4 prompt tokens takes 0.3 s more; 5 tokens were verified in 0.1 s: 20 ms each at most."""
    plain = (steps(4, 0.1, count=6), steps(0, 0.09, count=6))
    known = after(*(plain,) * 10)
    known.update((*plain, steps(4, 0.4, count=8, has_prefill=True, prefill_tokens=32)), 1.0)
    known.estimate(FULL, ONE)
    assert known.prompt_token_s == pytest.approx(0.02, rel=1e-3)


def test_prompts_alone_bound_a_server_that_was_never_seen_without_them() -> None:
    known = after((steps(4, 0.4, has_prefill=True, prefill_tokens=1000),))
    found = known.estimate(FULL, ONE)
    assert np.isfinite(found.step_s).all()
    assert (np.diff(found.step_s[3]) >= 0).all()


# The parts.


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 8), st.floats(1e-3, 1.0)), min_size=1))
def test_the_curve_is_the_best_fit_without_a_negative_cost(points: list[tuple[int, int, float]]) -> None:
    batch = np.array([float(b) for b, _, _ in points])
    verified = batch * np.array([1.0 + k for _, k, _ in points])
    seconds = np.array([s for _, _, s in points])
    found = Roofline.fitted(batch, verified, seconds, 0.0)
    assert min(found) >= 0.0
    columns = np.stack([np.ones_like(batch), batch, verified], axis=1) / seconds[:, None]
    miss = np.linalg.norm(columns @ np.array(found[:3]) - 1.0)
    # The enumeration takes no more columns than points, and gives up gains under 1e-12.
    assert miss <= nnls(columns, np.ones(len(seconds)))[1] + 1e-6 * len(points)


def test_the_curve_never_falls_under_what_computing_takes() -> None:
    curve = Roofline(0.01, 0.0, 1e-5, 1e-4)
    found = curve.seconds(np.array([1.0, 1.0]), np.array([10.0, 1000.0]))
    assert found == pytest.approx([0.0101, 0.1])


def test_prompt_tokens_from_steps_that_are_full_of_them() -> None:
    """1 ms a computed token, 1 us a token of context."""
    cost = PromptCost()
    assert cost.token_s == 0.0
    for prompts, context in ((100, 1000), (300, 500), (200, 9000)):
        step_s = 1e-3 * (prompts + 5) + 1e-6 * context
        seen = steps(4, step_s, count=10, has_prefill=True, prefill_tokens=10 * prompts)
        cost.add(
            cell(
                tokens=4, steps=10, step_s=step_s, accepted_at=(0,) * 4, has_prefill=True,
                prefill_tokens=seen.prefill_tokens, context_tokens=10 * context,
            )
        )  # fmt: skip
    assert cost.token_s == pytest.approx(1e-3, rel=0.01)
    assert cost.floor_s(np.array([1000.0])) == pytest.approx([150 * 1e-3 + 1e-3], rel=0.02)


def test_what_prompts_tell_is_forgotten() -> None:
    """405 tokens in 0.81 s: 2 ms each at most, and twice that after a half-life. The line stays."""
    cost = PromptCost()
    cost.add(steps(4, 0.81, count=8, has_prefill=True, prefill_tokens=3200))
    token_s = cost.token_s
    assert cost.least_token_s == pytest.approx(0.002, rel=EXACT)
    cost.forget(60.0)
    assert cost.least_token_s == pytest.approx(0.004, rel=EXACT)
    assert cost.token_s == pytest.approx(token_s, rel=EXACT)


def test_no_token_computes_longer_than_those_of_the_fullest_step() -> None:
    """Steps of 0.4 s with 4 prompt tokens, then one with 400 of them in 0.81 s."""
    plain = (steps(4, 0.1, count=6), steps(0, 0.09, count=6))
    known = after(*((*plain, steps(4, 0.4, count=8, has_prefill=True, prefill_tokens=32)),) * 10)
    known.estimate(FULL, ONE)
    assert known.prompt_token_s == pytest.approx(0.1 / 5, rel=0.02)
    known.update((*plain, steps(4, 0.81, count=8, has_prefill=True, prefill_tokens=3200)), 1.0)
    known.estimate(FULL, ONE)
    assert known.prompt_token_s <= 0.81 / 405
