from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from fakes.observations import capabilities, cell, chains, shadow, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from specctl.contract.telemetry import ShadowAcceptance, TelemetryCell
from specctl.core.acceptance import HALF_LIFE_S, PRIOR_TRIALS, TREE_PRIOR_STEPS, Acceptance
from specctl.core.space import Space

EXACT = 1e-12
"""Of a few sums and products of float64."""
CHAINS = Space.of(capabilities(chains(0, 1, 2, 4)))
TREES = Space.of(capabilities((*chains(0, 2), tree(2, 2, 5), tree(2, 3, 7))))


def after(*intervals: tuple[TelemetryCell, ...] | ShadowAcceptance, space: Space = CHAINS) -> Acceptance:
    found = Acceptance(space)
    for one in intervals:
        if isinstance(one, ShadowAcceptance):
            found.update((), one, 1.0)
        else:
            found.update(one, None, 1.0)
    return found


def drawn(rng: random.Random, rates: tuple[float, ...], drafts: int) -> tuple[int, ...]:
    counts = [0] * len(rates)
    for _ in range(drafts):
        for j, rate in enumerate(rates):
            if rng.random() >= rate:
                break
            counts[j] += 1
    return tuple(counts)


def test_stretches_of_the_text_are_no_drift() -> None:
    """Intervals in which most drafts are accepted, or few: only others than both are drift."""
    often = (cell(tokens=2, steps=20, accepted_at=(16, 12)),)
    seldom = (cell(tokens=2, steps=20, accepted_at=(4, 3)),)
    found = after(*(often, seldom) * 40)
    drifts = []
    for one in (often, seldom) * 5:
        found.update(one, None, 1.0)
        drifts.append(found.estimate().has_drifted)
    assert not any(drifts)
    found.update((cell(tokens=2, steps=240, accepted_at=(0, 0)),), None, 1.0)
    assert found.estimate().has_drifted


def test_what_is_accepted_behind_the_end_of_an_answer_is_not_emitted() -> None:
    """Of 4 drafts that are always accepted, the 1st to the 4th lose 5, 10, 15 and 20 %."""
    whole = cell(tokens=4, steps=1000, accepted_at=(1000,) * 4)
    cut = whole.model_copy(update={"emitted_tokens": whole.emitted_tokens - 500})
    without, found = after((whole,)).estimate(), after((cut,)).estimate()
    assert without.emitted[-1] == pytest.approx(5.0, abs=0.01)
    assert found.emitted.tolist() == pytest.approx([1.0, 1.95, 2.85, 4.5], abs=0.02)
    assert (found.survival == without.survival).all()


def test_counts_that_cannot_be_cut_nothing_and_never_below_none() -> None:
    """More tokens emitted than accepted, and none at all."""
    whole = cell(tokens=4, steps=1000, accepted_at=(1000,) * 4)
    more = after((whole.model_copy(update={"emitted_tokens": 9000}),)).estimate()
    none = after((whole.model_copy(update={"emitted_tokens": 0}),)).estimate()
    assert more.emitted[-1] == pytest.approx(5.0, abs=0.01)
    assert (none.emitted >= 1.0).all()


def test_nothing_counted() -> None:
    estimate = Acceptance(CHAINS).estimate()
    assert (estimate.trials, estimate.has_drifted) == (0.0, False)
    assert estimate.emitted[0] == 1.0
    assert estimate.drafted.tolist() == [0.0, 1.0, 2.0, 4.0]


def test_right_censored_counts_by_hand() -> None:
    """100 steps at depth 2 show nothing of depths 3 and 4: those rest on the 50 steps at depth 4 alone."""
    short = cell(steps=100, tokens=2, accepted_at=(80, 60))
    deep = cell(steps=50, tokens=4, accepted_at=(40, 30, 15, 3))
    estimate = after((short, deep)).estimate()
    q1 = (120 + 0.5) / (150 + 1)
    q2 = (90 + q1) / (120 + 1)
    q3 = (15 + q2) / (30 + 1)
    q4 = (3 + q3) / (15 + 1)
    s1, s2, s3, s4 = q1, q1 * q2, q1 * q2 * q3, q1 * q2 * q3 * q4
    expected = [1.0, 1 + s1, 1 + s1 + s2, 1 + s1 + s2 + s3 + s4]
    assert estimate.emitted == pytest.approx(expected, rel=EXACT)
    assert estimate.survival == pytest.approx([s1, s2, s3, s4], rel=EXACT)
    assert estimate.trials == 150.0
    variances = [(1 - q) / q / (n + 1) for q, n in zip((q1, q2, q3, q4), (150, 120, 30, 15), strict=True)]
    assert estimate.log_q_var == pytest.approx(variances, rel=EXACT)
    gradient = [(s1 + s2 + s3 + s4), (s2 + s3 + s4), s3 + s4, s4]
    assert estimate.gradient[3] == pytest.approx([g / expected[3] for g in gradient], rel=EXACT)
    difference = np.array(gradient) / expected[3] - np.array([s1, 0, 0, 0]) / expected[1]
    assert estimate.log_ratio_var(1)[3] == pytest.approx(difference**2 @ np.array(variances), rel=EXACT)
    assert estimate.log_ratio_var(1)[1] == 0.0


def test_a_depth_never_tried_has_the_rate_of_the_one_before() -> None:
    estimate = after((cell(steps=1000, tokens=2, accepted_at=(900, 810)),)).estimate()
    q = (900.5 / 1001, (810 + 900.5 / 1001) / 901)
    assert estimate.survival[3] == pytest.approx(q[0] * q[1] ** 3, rel=EXACT)


def test_a_short_draft_counts_as_not_accepted() -> None:
    estimate = after((cell(steps=100, drafted_at=(50, 50, 0, 0), accepted_at=(50, 50, 0, 0)),)).estimate()
    assert estimate.survival[0] == pytest.approx(0.5, abs=0.01)
    assert estimate.survival[2] < 0.01
    assert estimate.drafted.tolist() == [0.0, 0.5, 1.0, 1.0]


def test_the_error_is_that_of_repeated_draws() -> None:
    rng, rates, logs, variances = random.Random(5), (0.7, 0.5, 0.6, 0.4), [], []
    for _ in range(300):
        estimate = after((cell(steps=200, accepted_at=drawn(rng, rates, 200)),)).estimate()
        logs.append(np.log(estimate.emitted[3] / estimate.emitted[1]))
        variances.append(estimate.log_ratio_var(1)[3])
    # The standard deviation of 300 draws is known to 1 / sqrt(600) = 4 %.
    assert np.sqrt(np.mean(variances)) == pytest.approx(np.std(logs), rel=0.13)


def test_old_counts_are_halved_and_the_newest_three_intervals_are_kept_whole() -> None:
    one = (cell(steps=40, accepted_at=(20, 10, 5, 2)),)
    assert after(*(one,) * 3).estimate().trials == 120.0
    kept = 0.5 ** (1.0 / HALF_LIFE_S)
    assert after(*(one,) * 4).estimate().trials == pytest.approx(120 + 40 * kept, rel=EXACT)
    assert after(*(one,) * 5).estimate().trials == pytest.approx(120 + 40 * kept + 40 * kept**2, rel=EXACT)


def test_few_trials_are_kept_longer_than_their_seconds() -> None:
    one = (cell(steps=2, accepted_at=(1, 1, 0, 0)),)
    kept = 0.5 ** (2 / 16)
    assert after(*(one,) * 4).estimate().trials == pytest.approx(6 + 2 * kept, rel=EXACT)


def test_what_is_not_watched_is_not_forgotten() -> None:
    deep = (cell(steps=100, accepted_at=(80, 60, 40, 20)),)
    short = (cell(steps=10, tokens=2, accepted_at=(8, 6)),)
    both = after(*(deep,) * 10, *(short,) * 30).estimate()
    assert both.survival[3] / both.survival[2] == pytest.approx(0.5, abs=0.01)


def test_steps_at_off_tell_nothing() -> None:
    off = (cell(steps=100, tokens=0, accepted_at=()),)
    drafting = (cell(steps=20, accepted_at=(9, 8, 7, 6)),)
    assert after(drafting, *(off,) * 50).estimate().trials == 20.0


def test_shadow_drafts_tell_all_depths_at_every_setting() -> None:
    seen = Acceptance(CHAINS)
    seen.update((cell(steps=100, tokens=1, accepted_at=(0,)),), shadow(100, (90, 80, 70, 60)), 1.0)
    estimate = seen.estimate()
    assert estimate.survival[0] == pytest.approx((90 + 0.5) / 101, rel=EXACT)
    assert estimate.trials == 100.0
    assert after(shadow(10, (5, 2), (8, 4))).estimate().drafted.tolist() == pytest.approx([0, 0.8, 1.2, 2.0])


def tree_cell(topk: int, width: int, ranks: tuple[tuple[int, ...], ...], steps: int = 100) -> TelemetryCell:
    accepted = tuple(sum(one) for one in ranks)
    return cell(steps=steps, tokens=2, topk=topk, width=width, accepted_at=accepted, ranks=ranks)


def test_trees_by_rank_by_hand() -> None:
    estimate = after((tree_cell(2, 5, ((60, 10), (30, 10))),), space=TREES).estimate()
    first = (60 + 0.5) / 101
    second = (10 + 0.25 * (1 - first)) / 101
    first_below = (30 + first) / 71
    second_below = (10 + 0.25 * (1 - first_below)) / 71
    chain = 1 + first + first * first_below
    depth1, depth2 = first + second, first_below + second_below
    modelled = 1 + depth1 + depth1 * depth2
    ratio = (210 + TREE_PRIOR_STEPS * modelled) / ((100 + TREE_PRIOR_STEPS) * modelled)
    assert estimate.emitted[1] == pytest.approx(chain, rel=EXACT)
    assert estimate.emitted[2] == pytest.approx(modelled * ratio, rel=EXACT)
    assert estimate.drafted.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_fewer_branches_and_chains_are_known_from_a_wider_tree() -> None:
    seen = tree_cell(3, 7, ((6000, 1500, 500), (3000, 1000, 400)), steps=10_000)
    wide = after((seen,), space=TREES).estimate()
    assert wide.emitted[1] == pytest.approx(1 + 0.6 + 0.6 * 3000 / 8000, abs=0.01)
    assert wide.emitted[2] == pytest.approx(1 + 0.75 + 0.75 * 0.5, abs=0.02)


def test_a_tree_that_tells_no_ranks_tells_only_its_own_mean() -> None:
    silent = cell(steps=5000, tokens=2, topk=2, width=5, accepted_at=(4000, 3000))
    chain = cell(steps=1000, tokens=2, accepted_at=(500, 250))
    estimate = after((silent, chain), space=TREES).estimate()
    assert estimate.emitted[1] == pytest.approx(1.75, abs=0.01)
    assert estimate.emitted[2] == pytest.approx(1 + 7000 / 5000, abs=0.02)


@pytest.mark.parametrize(
    ("before", "later"),
    [((0.9,) * 4, (0.05,) * 4), ((0.1,) * 4, (0.95,) * 4), ((0.95,) * 4, (0.4,) * 4)],
    ids=["collapse", "rise", "fall"],
)
def test_a_change_is_followed_within_three_polls(before: tuple[float, ...], later: tuple[float, ...]) -> None:
    rng, seen, drifted = random.Random(7), Acceptance(CHAINS), False
    for _ in range(60):
        seen.update((cell(steps=8, accepted_at=drawn(rng, before, 8)),), None, 1.0)
    for _ in range(3):
        seen.update((cell(steps=8, accepted_at=drawn(rng, later, 8)),), None, 1.0)
        drifted |= seen.estimate().has_drifted
    assert drifted
    assert seen.estimate().survival[0] == pytest.approx(later[0], abs=0.2)


def test_a_drift_forgets_the_past_and_the_means_of_trees() -> None:
    good = (tree_cell(2, 5, ((60, 30), (50, 20))),)
    bad = (tree_cell(2, 5, ((5, 1), (1, 0))),)
    forgotten, afresh = after(*(good,) * 10, bad, space=TREES), after(bad, space=TREES)
    assert forgotten.estimate().has_drifted
    assert not afresh.estimate().has_drifted
    assert forgotten.estimate().trials == 100.0
    assert forgotten.estimate().emitted[:2] == pytest.approx(afresh.estimate().emitted[:2])
    forgotten.update((), None, 1.0)
    assert not forgotten.estimate().has_drifted


def test_steady_traffic_is_seldom_taken_for_drift() -> None:
    rng, seen, alarms = random.Random(3), Acceptance(CHAINS), 0
    for _ in range(1000):
        seen.update((cell(steps=10, accepted_at=drawn(rng, (0.6, 0.7, 0.8, 0.8), 10)),), None, 1.0)
        alarms += seen.estimate().has_drifted
    assert alarms <= 15


IMPOSSIBLE = {
    "more accepted than steps": cell(steps=10, accepted_at=(90, 6, 4, 2)),
    "more accepted deeper": cell(steps=10, accepted_at=(2, 6, 4, 2)),
    "ranks above the sum": tree_cell(2, 5, ((60, 30), (50, 20))).model_copy(
        update={"accepted_rank_at": ((90, 90), (80, 80))}
    ),
    "ranks of no accepted token": tree_cell(2, 5, ((0, 0), (0, 0))).model_copy(
        update={"accepted_rank_at": ((1,), (1,))}
    ),
}


@pytest.mark.parametrize("impossible", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_counts_that_cannot_be_are_left_out(impossible: TelemetryCell) -> None:
    usual = cell(steps=30, accepted_at=(20, 10, 5, 2))
    space = TREES if impossible.tree_topk > 1 else CHAINS
    alone, beside = (
        after((usual,), space=space).estimate(),
        after((usual, impossible), space=space).estimate(),
    )
    assert beside.emitted.tolist() == alone.emitted.tolist()
    assert beside.trials == alone.trials


def test_shadow_counts_that_cannot_be_are_left_out() -> None:
    assert after(shadow(10, (11, 2))).estimate().trials == 0.0
    assert after(shadow(10, (2, 4))).estimate().trials == 0.0


@settings(deadline=None)
@given(
    st.integers(1, 50),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
    st.integers(0, 2**32),
)
def test_survival_never_rises_and_deeper_drafts_never_emit_less(
    drafts: int, rates: list[float], seed: int
) -> None:
    rng, seen = random.Random(seed), Acceptance(CHAINS)
    for _ in range(5):
        seen.update((cell(steps=drafts, accepted_at=drawn(rng, tuple(rates), drafts)),), None, 1.0)
    estimate = seen.estimate()
    assert all(0 <= b <= a <= 1 for a, b in pairwise((1.0, *estimate.survival)))
    assert all(a <= b for a, b in pairwise(estimate.emitted))
    assert (estimate.log_q_var >= 0).all()
    assert estimate.trials >= PRIOR_TRIALS
