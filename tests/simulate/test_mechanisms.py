"""One short cell for each mechanism of the controller, which is clearly worse where it is switched off.

Cells are of the regret suite's kind: closed loops of half a minute to four minutes on the costs of an H200,
or of a machine as slow as a CPU, under ``balanced`` as it is shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from simulate.made import scenario_of

from benchmarks.closed_loop import closed_tasks
from benchmarks.held_out import held_out_tasks, slow_machine
from benchmarks.regret_cells import Task, TaskOptions
from specctl.core import acceptance, controller, plan, request_groups, sampling, step_cost
from specctl.core.acceptance import Acceptance
from specctl.core.front_end import FrontEnd
from specctl.core.mixed_steps import MixedSteps
from specctl.core.position_cost import PositionCost
from specctl.core.prompt_cost import PromptCost
from specctl.core.prompt_steps import PromptSteps
from specctl.core.rails import Rails
from specctl.core.request_groups import RequestGroups
from specctl.core.step_cost import StepCost
from specctl.policy.loader import AnyPolicy, find_policy, load_policy
from specctl.simulate.closed_loop import ClosedLoad
from specctl.simulate.compare import ArmResult, quiet_daemon, simulate
from specctl.simulate.daemon import Autotune
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.perturbation import PERTURBATIONS, Perturbation
from specctl.simulate.scenario import Scenario
from specctl.simulate.shapes import MEDIUM, RUNNER_UP_SHARES, TREE_SETTINGS, one_class, with_head

HIGH, LOW = 0.9, 0.1
SHORT = {"prompt_median_tokens": 60.0, "output_median_tokens": 100.0}
Run = Callable[..., ArmResult]


def balanced(**guard_rails: float) -> AnyPolicy:
    shipped = load_policy(find_policy("balanced"))
    rails = shipped.guard_rails.model_copy(update=guard_rails)
    return shipped.model_copy(update={"guard_rails": rails})


def of_suite(
    tasks: Callable[[str, TaskOptions], Sequence[Task]],
    group: str,
    load: str,
    policy: AnyPolicy | None = None,
    seed: int = 0,
) -> ArmResult:
    """A cell of the regret suite, by its group and name."""
    options = TaskOptions((seed,), 600, "balanced", "h200-llama8b-vllm032", None)
    cases = (task.case() for task in tasks(group, options))
    case = next(one for one in cases if one.name == load)
    with quiet_daemon():
        return simulate(
            case.load, case.profile, case.scenario, Autotune("ours", policy or balanced()), seed=case.seed,
            settings=case.settings, perturbation=case.perturbation,
        )  # fmt: skip


@pytest.fixture
def run(h200: EngineProfile) -> Run:
    def simulated(
        requests: int | npt.NDArray[np.int64],
        scenario: Scenario,
        span_s: float,
        policy: AnyPolicy | None = None,
        perturbation: str | Perturbation = "none",
        *,
        is_slow: bool = False,
        has_trees: bool = False,
        machine: EngineProfile | None = None,
        **lengths: float,
    ) -> ArmResult:
        machine = machine or (slow_machine(h200) if is_slow else with_head(h200) if has_trees else h200)
        if isinstance(perturbation, str):
            perturbation = PERTURBATIONS[perturbation]
        lengths = lengths or (SHORT if is_slow else {})
        load = ClosedLoad(np.atleast_1d(requests), span_s, **lengths)  # type: ignore[arg-type]
        arm = Autotune("ours", policy or balanced())
        with quiet_daemon():
            return simulate(
                load, machine, scenario, arm, seed=0,
                settings=TREE_SETTINGS if has_trees else (), perturbation=perturbation,
            )  # fmt: skip

    return simulated


def unmeasured(_: MixedSteps, expected: npt.NDArray[np.float64], __: object) -> tuple[float, object]:
    return 0.0, np.zeros_like(expected)


def wake() -> Scenario:
    return one_class("wake", [(0.0, LOW), (30.0, HIGH)])


def flips() -> Scenario:
    return one_class("flips", [(10.0 * i, LOW if i % 2 else HIGH) for i in range(8)])


def test_without_samples_drafting_never_comes_back_from_off(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = run(32, wake(), 60.0)
    monkeypatch.setattr(controller, "choose_sample", lambda *_: None)
    without = run(32, wake(), 60.0)
    assert without.sampled_steps == 0
    assert without.tokens_per_s < 0.95 * ours.tokens_per_s
    assert without.lost_ratio > 2.0 * ours.lost_ratio


def test_without_the_drift_test_a_change_of_the_text_is_followed_late(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = run(128, flips(), 80.0)
    monkeypatch.setattr(acceptance, "has_drifted", lambda *_: False)
    without = run(128, flips(), 80.0)
    assert without.tokens_per_s < 0.96 * ours.tokens_per_s
    assert without.lost_ratio > 1.5 * ours.lost_ratio


def test_stretches_of_the_text_are_no_change_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are drafts for some stretches of an answer and none for others."""
    cell = held_out_tasks, "held out, slow machine, stretches", "slow machine, two kinds at 2"
    ours = of_suite(*cell, seed=2)
    monkeypatch.setattr(Acceptance, "_dispersion", 1.0)
    without = of_suite(*cell, seed=2)
    assert ours.switches_per_minute < 4.0
    assert without.switches_per_minute > 10.0
    assert without.tokens_per_s < 1.01 * ours.tokens_per_s


def test_a_step_with_more_drafts_is_longer_and_its_setting_no_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = held_out_tasks, "held out, slow machine, stretches", "slow machine, walk at 8"
    ours = of_suite(*cell, seed=4)
    monkeypatch.setattr(PositionCost, "seconds", lambda self: np.zeros(len(self._square)))
    without = of_suite(*cell, seed=4)
    assert without.tokens_per_s < 0.975 * ours.tokens_per_s


def test_a_few_requests_of_two_kinds_are_not_followed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = of_suite(held_out_tasks, "held out", "two kinds at 4")
    monkeypatch.setattr(Acceptance, "_late_share", 0.0)
    without = of_suite(held_out_tasks, "held out", "two kinds at 4")
    assert ours.switches_per_minute < 2.0
    assert without.switches_per_minute > 10.0
    assert without.tokens_per_s < 0.985 * ours.tokens_per_s


def test_requests_that_are_accepted_leave_the_others_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of 24 requests copies: by the mean over those that decode, deeper drafts always look better."""
    ours = of_suite(held_out_tasks, "held out", "two kinds at 24")
    monkeypatch.setattr(RequestGroups, "ratio", lambda self, members, at_full_depth: 1.0)
    without = of_suite(held_out_tasks, "held out", "two kinds at 24")
    assert without.tokens_per_s < 0.97 * ours.tokens_per_s


def test_accepted_tokens_behind_the_end_of_an_answer_are_no_gain(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of 48 tokens, and drafts that are mostly right once their first token is."""
    sudden = scenario_of(0.5, *[0.9] * 7)
    lengths = {"prompt_median_tokens": 30.0, "output_median_tokens": 48.0}
    ours = run(200, sudden, 40.0, **lengths)
    monkeypatch.setattr(Acceptance, "_not_ended", lambda self, depths: np.ones(len(depths)))
    without = run(200, sudden, 40.0, **lengths)
    assert without.tokens_per_s < 0.95 * ours.tokens_per_s
    assert without.lost_ratio > 2.0 * ours.lost_ratio


def test_groups_forget_what_was_true_of_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of all requests changes at once: no two of them differ."""
    ours = of_suite(closed_tasks, "closed loop", "flips at 4", seed=2)
    monkeypatch.setattr(request_groups, "has_drifted", lambda *_: False)
    without = of_suite(closed_tasks, "closed loop", "flips at 4", seed=2)
    assert without.switches > ours.switches + 6


def test_counts_that_are_never_forgotten_miss_a_slow_change(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too slow for the drift test, which is off in both."""
    ramp = one_class("ramp", [(2.0 * i, 0.85 - 0.02 * i) for i in range(40)])
    monkeypatch.setattr(acceptance, "has_drifted", lambda *_: False)
    ours = run(48, ramp, 80.0)
    monkeypatch.setattr(acceptance, "HALF_LIFE_S", 1e9)
    monkeypatch.setattr(acceptance, "HALF_TRIALS", 1e15)
    without = run(48, ramp, 80.0)
    assert without.tokens_per_s < 0.97 * ours.tokens_per_s
    assert without.lost_ratio > 2.0 * ours.lost_ratio


def test_seconds_of_a_setting_are_a_mean_over_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mean over two steps nothing is known well enough for the table to rest."""
    cell = "held out, slow machine", "slow machine, walk at 1"
    ours = of_suite(held_out_tasks, *cell)
    monkeypatch.setattr(step_cost, "STEPS_MAX", 2.0)
    without = of_suite(held_out_tasks, *cell)
    assert without.switches > 2 * ours.switches
    assert without.tokens_per_s < 0.97 * ours.tokens_per_s
    assert without.lost_ratio > 2.0 * ours.lost_ratio


def test_without_a_level_every_offset_takes_a_busy_machine_for_a_slow_setting(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = run(4, scenario_of(0.42), 120.0, perturbation="all")
    move = StepCost._move_offset
    monkeypatch.setattr(StepCost, "_move_level", lambda *_: None)
    monkeypatch.setattr(StepCost, "_move_offset", lambda *args, is_alone: move(*args, is_alone=False))
    without = run(4, scenario_of(0.42), 120.0, perturbation="all")
    assert without.tokens_per_s < 0.98 * ours.tokens_per_s
    assert without.switches > ours.switches + 4


def test_a_step_that_stalls_is_no_property_of_its_setting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a second a step takes 200 ms more."""
    stalls = Perturbation(stall_s=0.2, stall_every_s=1.0)
    lengths = {"prompt_median_tokens": 100.0, "output_median_tokens": 1000.0}
    ours = run(8, scenario_of(0.4), 60.0, perturbation=stalls, **lengths)
    monkeypatch.setattr(step_cost, "STALL_RATIO", 1e9)
    without = run(8, scenario_of(0.4), 60.0, perturbation=stalls, **lengths)
    assert without.tokens_per_s < 0.97 * ours.tokens_per_s
    assert without.lost_ratio > 3.0 * ours.lost_ratio


def test_a_first_step_that_compiles_does_not_rule_its_setting_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is often the only step of a setting in its poll, where no other one shows that it was long."""
    ours = run(32, scenario_of(0.6), 60.0, perturbation="stalls")
    monkeypatch.setattr(step_cost, "CLIP_LOG", 1e9)
    without = run(32, scenario_of(0.6), 60.0, perturbation="stalls")
    assert without.tokens_per_s < 0.9 * ours.tokens_per_s
    assert without.lost_ratio > 3.0 * ours.lost_ratio


def test_what_a_second_branch_hits_is_guessed_before_it_ran(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = one_class("trees", [(0.0, MEDIUM)], RUNNER_UP_SHARES)
    ours = run(4, trees, 60.0, has_trees=True)
    monkeypatch.setattr(acceptance, "RANK_PRIOR_RATIO", 0.0)
    without = run(4, trees, 60.0, has_trees=True)
    assert without.tokens_per_s < 0.9 * ours.tokens_per_s
    assert without.lost_ratio > 5.0 * ours.lost_ratio


def test_a_trees_own_mean_corrects_the_product_of_its_depths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = of_suite(closed_tasks, "staircase", "trees, medium at 4")
    monkeypatch.setattr(Acceptance, "_tree_ratio", lambda self, modelled: 1.0)
    without = of_suite(closed_tasks, "staircase", "trees, medium at 4")
    assert without.lost_ratio > 1.4 * ours.lost_ratio


def test_the_search_may_spend_more_than_the_usual_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine there are few steps to learn from, and what is best changes."""
    cell = held_out_tasks, "held out, slow machine, stretches", "slow machine, walk at 4"
    ours = of_suite(*cell, seed=3)
    monkeypatch.setattr(sampling, "SEARCH_FACTOR", 1.0)
    without = of_suite(*cell, seed=3)
    assert without.tokens_per_s < 0.98 * ours.tokens_per_s
    assert without.lost_ratio > 3.0 * ours.lost_ratio


def test_without_the_cost_of_prompts_drafts_fill_steps_with_prompts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long prompts and short answers at 60 requests: most steps compute."""
    lengths = {"prompt_median_tokens": 300.0, "output_median_tokens": 40.0}
    ours = run(60, scenario_of(0.6), 80.0, **lengths)
    monkeypatch.setattr(PromptCost, "token_s", property(lambda self: 0.0))
    without = run(60, scenario_of(0.6), 80.0, **lengths)
    assert without.tokens_per_s < 0.98 * ours.tokens_per_s
    assert without.lost_ratio > 1.5 * ours.lost_ratio


def test_steps_full_of_prompts_tell_what_a_step_takes_at_least(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step without prompts is ever seen: else nothing would be known, and the start table would stay."""
    lengths = {"prompt_median_tokens": 800.0, "output_median_tokens": 40.0}
    ours = run(200, scenario_of(0.4), 60.0, **lengths)
    monkeypatch.setattr(PromptCost, "floor_s", lambda self, context: np.zeros_like(context))
    without = run(200, scenario_of(0.4), 60.0, **lengths)
    assert without.tokens_per_s < 0.95 * ours.tokens_per_s
    assert without.lost_ratio > 5.0 * ours.lost_ratio


def test_what_any_prompt_adds_to_a_step_is_not_charged_to_drafts(
    h200: EngineProfile, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short prompts whose steps run without full graphs: 15 ms more for a few dozen tokens."""
    machine = h200.model_copy(update={"prefill_step_s": 0.015})
    lengths = {"prompt_median_tokens": 42.0, "output_median_tokens": 200.0}
    ours = run(128, scenario_of(0.9), 60.0, machine=machine, **lengths)
    monkeypatch.setattr(StepCost, "_token_s_most", np.inf)
    without = run(128, scenario_of(0.9), 60.0, machine=machine, **lengths)
    assert without.tokens_per_s < 0.98 * ours.tokens_per_s
    assert without.lost_ratio > 2.0 * ours.lost_ratio


def test_drafts_hardly_lengthen_steps_that_wait_for_their_launches(
    h200: EngineProfile, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps with prompts run without full graphs, and take 16 ms at least with any number of drafts."""
    machine = h200.model_copy(update={"ungraphed_min_s": 0.016, "graph_tokens_max": 100_000})
    lengths = {"prompt_median_tokens": 42.0, "output_median_tokens": 200.0}
    ours = run(128, scenario_of(0.75), 60.0, machine=machine, **lengths)
    monkeypatch.setattr(MixedSteps, "beyond", unmeasured)
    without = run(128, scenario_of(0.75), 60.0, machine=machine, **lengths)
    assert without.tokens_per_s < 0.97 * ours.tokens_per_s
    assert without.lost_ratio > 2.0 * ours.lost_ratio


def test_in_a_server_full_of_short_answers_most_steps_hold_prompts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 requests with answers of 48 tokens: few steps are without prompts."""
    lengths = {"prompt_median_tokens": 30.0, "output_median_tokens": 48.0}
    ours = run(200, scenario_of(0.5, *[0.9] * 7), 40.0, **lengths)
    monkeypatch.setattr(MixedSteps, "beyond", unmeasured)
    without = run(200, scenario_of(0.5, *[0.9] * 7), 40.0, **lengths)
    assert without.tokens_per_s < 0.95 * ours.tokens_per_s
    assert without.lost_ratio > 2.0 * ours.lost_ratio


def test_prompts_in_steps_of_their_own_are_shared_by_the_answers_that_end_together(
    h200: EngineProfile, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in SGLang, on a machine whose drafts take 4 ms in any case: by decode steps alone, off is best."""
    machine = h200.model_copy(
        update={
            "prefill_step_s": 0.012,
            "draft": h200.draft.model_copy(update={"base_s": 0.004}),
            "scheduler": h200.scheduler.model_copy(update={"prompts_apart": True}),
        }
    )
    lengths = {"prompt_median_tokens": 150.0, "output_median_tokens": 96.0}
    ours = run(64, scenario_of(0.6), 40.0, machine=machine, **lengths)
    monkeypatch.setattr(PromptSteps, "seconds", lambda self, batch, emitted: np.zeros((len(batch), 1)))
    without = run(64, scenario_of(0.6), 40.0, machine=machine, **lengths)
    assert without.tokens_per_s < 0.96 * ours.tokens_per_s


def test_off_needs_no_least_gain_where_polls_are_rare(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acceptance falls slowly until drafting is 1 to 2 % worse than off."""
    ramp = one_class("ramp", [(2.0 * i, 0.5 - 0.006 * i) for i in range(31)])
    once_a_second = balanced().model_copy(update={"poll_interval_s": 1.0})
    ours = run(128, ramp, 240.0, once_a_second)
    monkeypatch.setattr(plan, "OFF_MIN_GAIN_RATIO", 1.0)
    without = run(128, ramp, 240.0, once_a_second)
    assert without.tokens_per_s < 0.996 * ours.tokens_per_s
    assert without.lost_ratio > 2.0 * ours.lost_ratio


def test_without_a_least_gain_the_table_never_rests() -> None:
    """Load and acceptance are constant: what changes is luck."""
    ours = of_suite(closed_tasks, "closed loop", "break-even at 4")
    without = of_suite(closed_tasks, "closed loop", "break-even at 4", balanced(min_gain_ratio=0.0))
    assert without.switches > ours.switches + 4


def test_without_a_dwell_time_a_few_lucky_drafts_are_followed() -> None:
    """4 requests whose acceptance walks around the least that pays."""
    ours = of_suite(closed_tasks, "closed loop", "break-even at 4")
    without = of_suite(closed_tasks, "closed loop", "break-even at 4", balanced(dwell_s=0.0))
    assert without.lost_ratio > 1.15 * ours.lost_ratio


def test_a_dip_of_the_text_holds_no_setting_for_its_dwell_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts are poor for one second in eight."""
    points = [(8.0 * i + from_s, chance) for i in range(8) for from_s, chance in ((0.0, 0.8), (7.0, LOW))]
    ours = run(64, one_class("dips", points), 60.0)
    dwell = Rails.dwell
    monkeypatch.setattr(
        Rails,
        "dwell",
        lambda self, dwell_s, present, may_wait, _, time_s: dwell(
            self, dwell_s, present, may_wait, False, time_s
        ),
    )
    without = run(64, one_class("dips", points), 60.0)
    assert without.tokens_per_s < 0.97 * ours.tokens_per_s
    assert without.lost_ratio > 2.0 * ours.lost_ratio


def test_a_front_end_slower_than_the_engine_is_part_of_a_steps_seconds(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 us for what each of 256 requests emits: 51 ms a step, where the engine takes half."""
    behind = Perturbation(front_end_s=200e-6)
    ours = run(256, scenario_of(0.35), 60.0, perturbation=behind)
    monkeypatch.setattr(FrontEnd, "paced", lambda self, cost: cost)
    without = run(256, scenario_of(0.35), 60.0, perturbation=behind)
    assert without.tokens_per_s < 0.92 * ours.tokens_per_s
