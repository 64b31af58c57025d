"""Trees of drafted tokens: which nodes they have, what is accepted, what they cost, what is counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from simulate.made import trace_of

from specctl.contract.setting import Setting
from specctl.simulate import state as at
from specctl.simulate.acceptance import accepted_nodes, expected_tokens, set_conditional
from specctl.simulate.arms import statics
from specctl.simulate.closed_loop import ClosedLoad
from specctl.simulate.compare import compare
from specctl.simulate.costs import setting_seconds
from specctl.simulate.engine import SimulatedEngine, table_of
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.perturbation import Perturbation
from specctl.simulate.scenario import Scenario
from specctl.simulate.settings import chains, index_of, prepared_of, setting_name
from specctl.simulate.target import LOG_STEPS, SimulatedTarget


def tree(depth: int, topk: int, width: int) -> Setting:
    return Setting(num_speculative_tokens=depth, tree_topk=topk, verify_width_tokens=width)


SETTINGS = (*chains(3), tree(2, 2, 4), tree(3, 3, 8), tree(5, 4, 16))


def ranked(chance: float, *shares: float) -> Scenario:
    points = [{"from_s": 0, "conditional_at": [chance]}]
    one = {"name": "all", "share": 1.0, "points": points, "runner_up_shares": shares}
    return Scenario.model_validate({"name": "made", "classes": [one]})


def paths(at_setting: int) -> set[tuple[int, ...]]:
    """The nodes as the ranks on their way from the root."""
    prepared = prepared_of(SETTINGS)
    found: list[tuple[int, ...]] = [()]
    for node in range(1, int(prepared.nodes[at_setting]) + 1):
        parent = found[prepared.parent[at_setting, node]]
        found.append((*parent, int(prepared.rank[at_setting, node])))
        assert prepared.level[at_setting, node] == len(found[node])
        assert prepared.children[at_setting, prepared.parent[at_setting, node], found[node][-1]] == node
    return set(found[1:])


def test_a_chain_has_one_node_a_depth_and_a_tree_its_width() -> None:
    assert paths(3) == {(0,), (0, 0), (0, 0, 0)}
    assert paths(4) == {(0,), (0, 0), (1,)}
    for setting in (4, 5, 6):
        found = paths(setting)
        assert len(found) == SETTINGS[setting].width_tokens - 1
        assert all(path[:-1] in found for path in found if len(path) > 1)
        assert max(len(path) for path in found) <= SETTINGS[setting].num_speculative_tokens
        assert max(max(path) for path in found) < SETTINGS[setting].tree_topk


def test_a_width_that_cannot_be_filled_is_refused() -> None:
    with pytest.raises(ValueError, match="verify_width_tokens: expected at most 7, got 8"):
        prepared_of([tree(2, 2, 8)])


def test_a_row_finds_its_prepared_setting() -> None:
    assert index_of(Setting(num_speculative_tokens=3), SETTINGS) == 3
    assert index_of(Setting(num_speculative_tokens=3, tree_topk=3), SETTINGS) == 5, "as prepared"
    assert index_of(tree(2, 2, 4), SETTINGS) == 4
    with pytest.raises(ValueError, match="prepared settings"):
        index_of(tree(2, 2, 3), SETTINGS)
    assert [setting_name(one) for one in SETTINGS[:2]] == ["off", "static 1"]
    assert setting_name(SETTINGS[5]) == "static 3 top 3 width 8"


def test_expected_tokens_are_those_that_are_drawn() -> None:
    prepared = prepared_of(SETTINGS)
    law = at.new_law(ranked(0.55, 0.5, 0.25, 0.1), prepared, Perturbation())
    conditional = np.zeros((1, 5))
    set_conditional(law, 0.0, 1, conditional)
    tokens, draws = np.zeros(len(SETTINGS)), 20_000
    ends = np.zeros((1, 7), np.int64)
    ends[0, 6] = 1
    expected_tokens(law, prepared, conditional, ends, np.zeros(16), np.zeros(5), tokens)
    for setting in range(len(SETTINGS)):
        accepted = [
            accepted_nodes(law, prepared, conditional, 0, r, 0, 0, setting, np.zeros(0, np.int8))
            for r in range(draws)
        ]
        # 20,000 draws of up to 5 tokens: a standard error under 0.012.
        assert 1 + np.mean(accepted) == pytest.approx(tokens[setting], abs=0.035)
    assert tokens[4] > tokens[2], "a second choice helps"


def test_expected_tokens_end_with_the_request() -> None:
    prepared = prepared_of(chains(3))
    law = at.new_law(ranked(0.5), prepared, Perturbation())
    conditional = np.full((1, 3), 0.5)
    tokens = np.zeros(4)
    ends = np.array([[0, 10, 0, 1, 0]])
    expected_tokens(law, prepared, conditional, ends, np.zeros(4), np.zeros(3), tokens)
    # Ten requests with one token to go emit it; one with three emits at most two drafted ones.
    assert tokens.tolist() == [11.0, 11.5, 11.75, 11.75]


def test_ranks_follow_the_law() -> None:
    prepared = prepared_of(SETTINGS)
    law = at.new_law(ranked(0.4, 0.5, 0.25), prepared, Perturbation())
    conditional = np.full((1, 5), 0.4)
    counts, draws, ranks = np.zeros(4), 20_000, np.zeros(5, np.int8)
    for r in range(draws):
        if accepted_nodes(law, prepared, conditional, 0, r, 0, 0, 5, ranks):
            counts[ranks[0]] += 1
    # Standard errors under 0.0035.
    assert counts / draws == pytest.approx(np.array([0.4, 0.3, 0.15, 0.0]), abs=0.011)


def test_a_tree_costs_its_width_and_its_passes(small: Callable[..., EngineProfile]) -> None:
    base = small()
    profile = base.model_copy(update={"draft": base.draft.model_copy(update={"pass_s": 0.001})})
    prepared = prepared_of(SETTINGS)
    costs = at.new_costs(profile, len(SETTINGS), Perturbation(), 0)
    chain = [setting_seconds(costs, prepared, 3, batch, batch, 0, 0, 0.0) for batch in (8, 16)]
    wide = setting_seconds(costs, prepared, 5, 8, 8, 0, 0, 0.0)
    # 8 requests x 8 positions and 16 x 4: the same forward pass and the same passes of the draft head.
    assert wide == pytest.approx(chain[1] - 8 * profile.draft.request_s, rel=1e-9)
    deep = setting_seconds(costs, prepared, 6, 4, 4, 0, 0, 0.0)
    assert deep - wide == pytest.approx(2 * 0.001 - 4 * profile.draft.request_s, rel=1e-9)


def test_ranks_and_verified_positions_are_counted(h200: EngineProfile) -> None:
    engine = SimulatedEngine(
        trace_of([0.0] * 4, 20, 400),
        h200,
        ranked(0.5, 0.6),
        seed=0,
        log_steps=LOG_STEPS,
        settings=SETTINGS,
    )
    target = SimulatedTarget(engine)
    assert target.capabilities.settings == SETTINGS
    assert {one.tree_topk for one in target.capabilities.settings} == {1, 2, 3, 4}
    assert target.live.lookup_row(1).setting == SETTINGS[6], "it starts with the deepest"
    target.run(1e9)
    cells = [cell for cell in target.counters.cells() if cell.tree_topk == 4]
    assert cells
    for cell in cells:
        assert cell.verify_width_tokens == 16
        assert cell.verified_tokens == 16 * cell.request_steps
        assert cell.drafted_at[:5] == (cell.request_steps,) * 5
        assert [sum(by_rank) for by_rank in cell.accepted_rank_at] == list(cell.accepted_at[:5])
        assert all(by_rank[2] == by_rank[3] == 0 for by_rank in cell.accepted_rank_at)
    assert sum(cell.accepted_rank_at[0][1] for cell in cells) > 0


def test_the_clairvoyant_chooses_among_trees_and_chains(h200: EngineProfile) -> None:
    compared = compare(
        ClosedLoad.constant(2, 20.0),
        h200,
        ranked(0.45, 0.6, 0.3),
        statics(SETTINGS),
        settings=SETTINGS,
    )
    assert compared.best_static == "static 5 top 4 width 16"
    # 20 s of two requests emit 10,000 tokens: by luck alone two runs differ by 1 %.
    assert min(result.regret_ratio for result in compared.results) > -0.03
    engine = SimulatedEngine(trace_of([0.0], 10, 5), h200, ranked(0.5), seed=0, settings=SETTINGS)
    with pytest.raises(ValueError, match="prepared settings"):
        engine.place_of(Setting(num_speculative_tokens=4))
    engine.set_table(table_of(np.full(2, 6)))


@pytest.mark.parametrize("shares", [(0.7, 0.4), (1.2,), (-0.1,)])
def test_a_wrong_law_of_ranks_is_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="runner_up_shares"):
        ranked(0.5, *shares)
