"""One server under the controller: what a user would notice of its decisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes.machine import Machine, Steered, policy
from fakes.observations import applied, capabilities, cell, chains, observation, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from specctl.contract.classes import ClassLimit
from specctl.contract.setting import RowSample, Setting
from specctl.contract.table import TableRow, uniform_rows
from specctl.core.controller import Controller
from specctl.core.messages import Plan, Reason, knobs_moved
from specctl.core.rails import NOTHING_HELD, Held
from specctl.core.table_rows import row_at
from specctl.engine.checked_table import SpeculationTable

TREES = (*chains(0, 2, 4), tree(4, 4, 9), tree(4, 4, 16))
FOUR = Setting(num_speculative_tokens=4)
LONG_CONTEXTS = (
    TableRow(decode_batch_from=1, context_to_tokens=999, num_speculative_tokens=0),
    TableRow(decode_batch_from=1, context_from_tokens=1000, num_speculative_tokens=1, min_token_prob=0.3),
)


def planned(
    machine: Machine, text: str = "kind: goodput", *, polls: int = 1, held: Held = NOTHING_HELD
) -> Plan:
    steered = Steered(machine, text)
    steered.held = held
    return steered.run(polls, puts=False)[-1]


# What is chosen.


@pytest.mark.parametrize("batch", [1, 4, 32])
@pytest.mark.parametrize("accept", [0.05, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("start", [0, 8])
def test_it_finds_what_gives_the_most_tokens(batch: int, accept: float, start: int) -> None:
    machine = Machine(batch=batch, accept=accept, rows=uniform_rows(start))
    Steered(machine).run(30)
    assert machine.rate(machine.at().setting) >= 0.97 * machine.rate(machine.best())


def test_a_full_server_drafts_less_than_a_quiet_one() -> None:
    machine = Machine(batch=1, accept=0.6)
    steered = Steered(machine)
    steered.run(20)
    machine.batch = 32
    steered.run(20)
    assert machine.at(32).num_speculative_tokens < machine.at(1).num_speculative_tokens


def test_a_tree_is_chosen_where_it_pays_and_a_chain_where_it_does_not() -> None:
    quiet = Machine(settings=TREES, batch=1, accept=0.5)
    Steered(quiet).run(40)
    full = Machine(settings=TREES, batch=32, accept=0.5)
    Steered(full).run(40)
    assert quiet.best().tree_topk == quiet.at().tree_topk == 4
    assert full.best().tree_topk == full.at().tree_topk == 1


@pytest.mark.parametrize("accept", [0.05, 0.9])
def test_a_phase_change_is_followed_within_four_seconds(accept: float) -> None:
    machine = Machine(batch=1, accept=0.95 - accept)
    steered = Steered(machine)
    steered.run(40)
    machine.accept = accept
    steered.run(4)
    assert machine.rate(machine.at().setting) >= 0.9 * machine.rate(machine.best())


def test_the_reason_of_a_change_is_that_of_a_bucket_that_changes() -> None:
    """Also where only buckets without traffic change."""
    machine = Machine(batch=4, accept=0.9)
    steered = Steered(machine)
    plans = []
    for accept in (0.9, 0.6, 0.9, 0.5, 0.7):
        machine.accept = accept
        plans += steered.run(15)
    changes = [plan for plan in plans if plan.changed]
    assert any(not plan.is_felt for plan in changes)
    assert all(plan.reason in {one.reason for one in plan.changed} for plan in changes)


def test_off_is_found_to_be_wrong_by_samples_alone() -> None:
    machine = Machine(batch=4, accept=0.05, rows=uniform_rows(8))
    steered = Steered(machine)
    steered.run(40)
    assert steered.tokens == 0
    machine.accept = 0.9
    steered.run(10)
    assert steered.tokens >= 4


def test_without_samples_off_stays_off() -> None:
    machine = Machine(batch=4, accept=0.9)
    steered = Steered(machine, "kind: goodput\nsampling: {share_max_ratio: 0}")
    plans = steered.run(20)
    assert steered.tokens == 0
    assert plans[-1].reason is Reason.FEW_SAMPLES


def test_samples_cost_no_more_than_their_share_once_all_is_known() -> None:
    machine = Machine(batch=4, accept=0.6)
    steered = Steered(machine)
    steered.run(60)
    emitted, seconds = steered.emitted, 60
    steered.run(seconds)
    ideal = machine.rate(machine.best()) * seconds
    assert steered.emitted - emitted >= 0.98 * ideal


def test_the_same_polls_give_the_same_decisions() -> None:
    first, second = (Steered(Machine(accept=0.5)).run(15) for _ in range(2))
    assert [plan.rows for plan in first] == [plan.rows for plan in second]


def test_asking_twice_gives_the_same_answer() -> None:
    machine = Machine(accept=0.5, min_token_prob=0.0)
    steered = Steered(machine)
    steered.run(10)
    seen = machine.poll()
    steered.controller.learn(seen)
    once, again = (steered.controller.plan(seen, steered.policy) for _ in range(2))
    assert (once.rows, once.choices) == (again.rows, again.choices)


# Guard rails, one after another.


def test_a_setting_stays_for_its_dwell_time() -> None:
    machine = Machine(batch=4, accept=0.9)
    steered = Steered(machine, "kind: goodput\nguard_rails: {dwell_s: 20}")
    while not steered.tokens:
        steered.run(1)
    changed_s = machine.time_s
    machine.rows = uniform_rows(1)
    plans = steered.run(25)
    by_reason = {plan.time_s: plan.reason for plan in plans}
    assert {by_reason[changed_s + second] for second in range(1, 20)} == {Reason.DWELL}
    assert by_reason[changed_s + 20] is Reason.GAIN
    assert "changed less than 20 s ago" in plans[5].explanation


def test_a_gain_under_the_least_one_changes_nothing() -> None:
    machine = Machine(batch=4, accept=0.9)
    steered = Steered(machine, "kind: goodput\nguard_rails: {min_gain_ratio: 1.0}")
    steered.run(5)
    machine.rows = uniform_rows(4)
    machine.put(planned(machine, "kind: fixed\nnum_speculative_tokens: 4"))
    plans = steered.run(30)
    assert steered.tokens == 4
    assert plans[-1].reason is Reason.NO_BETTER
    assert "would gain" in plans[-1].explanation
    usual = Steered(machine)
    usual.run(30)
    assert usual.tokens == 8


def test_a_policy_that_forbids_off_is_not_turned_off() -> None:
    machine = Machine(accept=0.02, rows=uniform_rows(8))
    Steered(machine, "kind: goodput\nknobs: {num_speculative_tokens: {min: 1}}").run(20)
    assert machine.at().num_speculative_tokens == 1
    assert all(row.num_speculative_tokens for row in machine.rows)


def test_a_change_that_the_engine_did_not_accept_is_not_remembered() -> None:
    machine = Machine(batch=4, accept=0.9)
    steered = Steered(machine, "kind: goodput\nguard_rails: {dwell_s: 3000}")
    machine.rows = uniform_rows(1)
    refused = steered.run(20, puts=False)
    assert refused[-1].is_change
    assert refused[-1].reason is Reason.GAIN


# Bounds, and what the server lacks.


def test_the_knobs_bound_every_choice() -> None:
    machine = Machine(settings=TREES, batch=1, accept=0.6)
    Steered(machine, "kind: goodput\nknobs: {tree_topk: {max: 1}, num_speculative_tokens: {max: 2}}").run(20)
    assert machine.at().setting == chains(2)[0]
    wide = Machine(settings=TREES, batch=1, accept=0.6)
    Steered(wide, "kind: goodput\nknobs: {verify_width_tokens: {max: 9}}").run(30)
    assert wide.at().width_tokens <= 9


def test_a_setting_outside_new_bounds_is_left_at_once() -> None:
    machine = Machine(accept=0.9, rows=uniform_rows(8))
    plan = planned(machine, "kind: goodput\nknobs: {num_speculative_tokens: {max: 2}}")
    assert plan.rows is not None
    assert {row.num_speculative_tokens for row in plan.rows} <= {0, 1, 2}
    assert plan.reason is Reason.SET_BY_POLICY
    assert "8 tokens is outside the policy's bounds" in plan.explanation


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: goodput\nknobs: {tree_topk: {min: 4, max: 4}}",
         "no prepared setting has tree_topk from 4 to 4"),
        ("kind: cost\nprice_per_gpu_hour: 1\nknobs: {verify_width_tokens: {min: 64}}",
         "no prepared setting has verify_width_tokens from 64 to 1024"),
        ("kind: goodput\nknobs: {num_speculative_tokens: {min: 3, max: 3}}",
         "no prepared setting has num_speculative_tokens from 3 to 3"),
    ],
)  # fmt: skip
def test_a_knob_that_the_server_lacks_changes_nothing_and_says_which(text: str, words: str) -> None:
    machine = Machine(rows=uniform_rows(4))
    plan = planned(machine, text)
    assert (plan.is_held, plan.is_change, plan.reason) == (True, False, Reason.NOT_POSSIBLE)
    assert plan.rows == machine.rows, "the lease can be renewed with it"
    assert plan.explanation.startswith("batch 3-4: stays at 4 tokens, the server cannot do what")
    assert words in plan.explanation
    assert planned(replace(machine, batch=0), text).explanation == words


def test_a_server_that_cannot_be_turned_off_is_never_sent_off() -> None:
    """Neither as a row nor as a sample: the machine refuses both, as an engine does."""
    machine = Machine(settings=chains(2, 4), batch=32, accept=0.02, rows=uniform_rows(4))
    Steered(machine).run(20)
    assert machine.at().num_speculative_tokens == 2
    plan = planned(machine, "kind: off")
    assert (plan.rows, plan.reason) == (machine.rows, Reason.NOT_POSSIBLE)
    fixed = planned(machine, "kind: fixed\nnum_speculative_tokens: 1")
    assert {one.reason for one in fixed.choices} == {Reason.NOT_POSSIBLE}
    assert not fixed.is_change


def test_an_engine_that_cannot_sample_gets_no_samples() -> None:
    machine = Machine(sample_every_min_steps=None, accept=0.9, rows=uniform_rows(4))
    Steered(machine).run(10)
    assert all(row.sample is None for row in machine.rows)


def test_samples_come_no_more_often_than_the_engine_allows() -> None:
    machine = Machine(sample_every_min_steps=50, accept=0.9, rows=uniform_rows(4))
    Steered(machine).run(10)
    assert machine.at().sample is not None
    assert all(row.sample.every_steps >= 50 for row in machine.rows if row.sample)


def test_a_setting_that_a_restart_no_longer_prepared_is_replaced() -> None:
    machine = Machine(settings=chains(0, 1, 2), accept=0.9, rows=uniform_rows(8), batch=0)
    plan = planned(machine)
    assert plan.rows is not None
    SpeculationTable(plan.rows, machine.capabilities)
    assert {one.reason for one in plan.choices} == {Reason.NOT_POSSIBLE}
    assert plan.choices[0].detail == "8 tokens is not prepared on this server"


def test_a_sample_that_a_restart_no_longer_prepared_is_replaced() -> None:
    row = TableRow(decode_batch_from=1, num_speculative_tokens=2,
                   sample=RowSample(setting=Setting(num_speculative_tokens=8), every_steps=10))  # fmt: skip
    machine = Machine(settings=chains(0, 1, 2), accept=0.9, rows=(row,), batch=0)
    Steered(machine).run(2)
    assert all(row.sample is None or row.sample.setting in chains(0, 1, 2) for row in machine.rows)


# What is not decided is carried over.


def test_rows_for_long_contexts_stay_as_they_are() -> None:
    machine = Machine(accept=0.9, rows=LONG_CONTEXTS, min_token_prob=0.0)
    Steered(machine).run(15)
    assert machine.at().num_speculative_tokens == 8
    for batch in (1, 4, 32):
        row = row_at(machine.rows, batch, 1000)
        assert row is not None
        assert row.setting == Setting(num_speculative_tokens=1, min_token_prob=0.3)
        assert row_at(machine.rows, batch, 999) == row_at(machine.rows, batch)


def test_the_probability_in_force_stays_where_the_policy_leaves_it() -> None:
    rows = (TableRow(decode_batch_from=1, num_speculative_tokens=0, min_token_prob=0.4),)
    machine = Machine(accept=0.9, rows=rows, min_token_prob=0.0)
    Steered(machine, "kind: goodput\nknobs: {min_token_prob: as_configured}").run(15)
    assert machine.at().num_speculative_tokens == 8
    assert {row.min_token_prob for row in machine.rows} == {0.4}


def test_a_tree_keeps_its_branches_and_its_width_while_nothing_is_better() -> None:
    rows = (TableRow(decode_batch_from=1, **dict(tree(4, 4, 9))),)
    machine = Machine(settings=(*chains(0), tree(4, 4, 9)), batch=1, accept=0.8, rows=rows)
    Steered(machine).run(15)
    assert {row.setting for row in machine.rows} == {tree(4, 4, 9)}


def test_what_an_idle_bucket_has_stays() -> None:
    rows = (
        TableRow(decode_batch_from=1, decode_batch_to=5, num_speculative_tokens=4),
        TableRow(decode_batch_from=6, num_speculative_tokens=1),
    )
    machine = Machine(accept=0.9, rows=rows, batch=0)
    plan = planned(machine, polls=3)
    assert plan.reason is Reason.IDLE
    assert not plan.is_change
    assert plan.rows is not None
    assert [row_at(plan.rows, batch).num_speculative_tokens for batch in (4, 5, 6, 8, 32)] == [4, 4, 1, 1, 1]  # type: ignore[union-attr]


LIMITS = (ClassLimit(kind="chat", max_num_speculative_tokens=0),)
WITH_LIMITS = "kind: goodput\nclasses: [{kind: chat, max_num_speculative_tokens: 0}]"


def test_rules_for_classes_are_the_policys() -> None:
    machine = Machine(class_limits_max=4, accept=0.02)
    plans = Steered(machine, WITH_LIMITS).run(2)
    assert machine.class_limits == LIMITS
    assert plans[0].changes[-1] == "rules for traffic classes: kind chat: at most 0 tokens"
    assert not any("rules" in change for change in plans[1].changes)
    plan = Steered(machine, "kind: goodput\nclasses: []").run(1)[0]
    assert machine.class_limits == ()
    assert plan.changes[-1] == "rules for traffic classes: none"


def test_rules_that_somebody_else_put_stay_where_the_policy_does_not_speak_of_them() -> None:
    others = (ClassLimit(kind="sql", max_num_speculative_tokens=2),)
    machine = Machine(class_limits_max=4, accept=0.02, class_limits=others)
    steered = Steered(machine)
    assert not any("rules" in change for plan in steered.run(2) for change in plan.changes)
    assert machine.class_limits == others
    steered.policy = policy(WITH_LIMITS)
    steered.run(2)
    assert machine.class_limits == LIMITS
    steered.policy = policy()
    plan = steered.run(1)[0]
    assert machine.class_limits == others, "the policy's own are gone, and what was there before is back"
    assert plan.changes[-1] == "rules for traffic classes: kind sql: at most 2 tokens"
    machine.class_limits = LIMITS
    steered.run(2)
    assert machine.class_limits == LIMITS, "somebody put them meanwhile"


def test_an_engine_that_takes_fewer_rules_gets_none_and_a_warning() -> None:
    (event,) = planned(Machine(), WITH_LIMITS).events
    assert event.is_warning
    assert event.words == "the server takes 0 rules for classes, the policy has 1: they are left out"


def test_a_freeze_changes_nothing_whatever_would_be_better() -> None:
    sample = RowSample(setting=FOUR, every_steps=7)
    rows = (
        TableRow(decode_batch_from=1, decode_batch_to=5, num_speculative_tokens=1, sample=sample),
        TableRow(decode_batch_from=6, num_speculative_tokens=0, min_token_prob=0.4),
    )
    machine = Machine(accept=0.95, rows=rows, class_limits=LIMITS, class_limits_max=4, min_token_prob=0.0)
    for text in ("kind: goodput", "kind: off", "kind: goodput\nknobs: {tree_topk: {min: 9}}"):
        plan = planned(machine, f"{text}\nfrozen: true", polls=10)
        assert plan.rows == rows, "the lease can be renewed with it"
        assert plan.class_limits == LIMITS
        assert (plan.is_change, plan.changed, plan.reason) == (False, (), Reason.FROZEN)
        assert "nothing is changed" in plan.explanation


# Held from outside.


def test_a_ceiling_from_a_rollout_bounds_the_choice() -> None:
    held = Held(ceilings={4: (chains(1)[0], Reason.CANARY_WAIT, "b goes first")})
    machine = Machine(accept=0.95)
    steered = Steered(machine)
    steered.held = held
    plan = steered.run(20)[-1]
    assert machine.at(4).num_speculative_tokens <= 1
    assert plan.reason is Reason.CANARY_WAIT
    assert "b goes first" in plan.explanation
    fixed = planned(Machine(), "kind: fixed\nnum_speculative_tokens: 8", held=held)
    assert [one.after.num_speculative_tokens for one in fixed.choices] == [8, 8, 0, 8, 8, 8]


@pytest.mark.parametrize(
    "text",
    [
        "kind: goodput",
        "kind: fixed\nnum_speculative_tokens: 8",
        "kind: goodput\nguard_rails: {dwell_s: 3000}",
    ],
)
def test_a_rollback_comes_before_what_is_wanted_and_before_the_guard_rails(text: str) -> None:
    machine = Machine(accept=0.95, rows=uniform_rows(2), min_token_prob=0.0)
    steered = Steered(machine, text)
    steered.run(20)
    assert steered.tokens == 8
    back = Setting(num_speculative_tokens=2, min_token_prob=0.3)
    steered.held = Held(settings={4: (back, Reason.ROLLBACK, "it was worse here")})
    plan = steered.run(1)[0]
    assert machine.at(4).setting == back
    assert plan.reason is Reason.ROLLBACK


def test_a_rollback_of_a_probability_alone_is_one() -> None:
    rows = (TableRow(decode_batch_from=1, num_speculative_tokens=8, min_token_prob=0.05),)
    machine = Machine(accept=0.95, rows=rows, min_token_prob=0.0)
    back = Setting(num_speculative_tokens=8, min_token_prob=0.4)
    plan = planned(machine, held=Held(settings={4: (back, Reason.ROLLBACK, "it was worse here")}), polls=9)
    assert plan.choices[2].after == back
    assert plan.reason is Reason.ROLLBACK


# Kinds of policy.


def test_policies_by_hand_act_at_once_and_learn_nothing() -> None:
    machine = Machine(accept=0.02)
    fixed = planned(machine, "kind: fixed\nnum_speculative_tokens: 4")
    assert {row.num_speculative_tokens for row in fixed.rows or ()} == {4}
    assert all(row.sample is None for row in fixed.rows or ())
    low, high = (
        "{decode_batch_to: 4, num_speculative_tokens: 2}",
        "{decode_batch_to: null, num_speculative_tokens: 0}",
    )
    by_hand = planned(machine, f"kind: thresholds\nthresholds: [{low}, {high}]")
    assert by_hand.rows == (
        TableRow(decode_batch_from=1, decode_batch_to=4, num_speculative_tokens=2),
        TableRow(decode_batch_from=5, num_speculative_tokens=0),
    )
    drafting = Machine(accept=0.95, rows=uniform_rows(4))
    off = planned(drafting, "kind: off")
    assert off.rows == uniform_rows(0)
    assert off.reason is Reason.SET_BY_POLICY


def test_a_fixed_setting_that_is_not_prepared_gives_the_nearest_below_and_says_so() -> None:
    plan = planned(Machine(), "kind: fixed\nnum_speculative_tokens: 7")
    assert {row.num_speculative_tokens for row in plan.rows or ()} == {4}
    assert "7 tokens is not prepared on this server, 4 tokens is the nearest below" in plan.explanation


def test_a_bound_on_latency_chooses_otherwise_than_tokens_alone() -> None:
    """Off takes 14 ms a step, 4 drafts 40 ms; 4 drafts give more tokens."""
    machine = Machine(batch=32, accept=0.95)
    Steered(machine).run(30)
    most = machine.at().setting
    bounded = Machine(batch=32, accept=0.95)
    plans = Steered(bounded, "kind: slo\nmax_itl_ms: 24").run(30)
    held = bounded.at().setting
    assert bounded.step_s(32, 32 * held.width_tokens) <= 0.024 < machine.step_s(32, 32 * most.width_tokens)
    assert plans[-1].reason is not Reason.LATENCY_BOUND, "the best one within the bounds is in force"
    slower = Machine(batch=32, accept=0.95, rows=uniform_rows(8))
    first = Steered(slower, "kind: slo\nmax_itl_ms: 24").run(12)
    assert Reason.LATENCY_BOUND in [plan.reason for plan in first]


def test_bounds_that_nothing_meets_choose_what_breaks_them_least() -> None:
    machine = Machine(batch=32, accept=0.95, rows=uniform_rows(8))
    plans = Steered(machine, "kind: goodput\nmax_itl_ms: 1").run(20)
    assert machine.at().num_speculative_tokens == 0
    assert plans[-1].reason is Reason.LATENCY_BOUND
    assert "the one that breaks them least" in plans[-1].explanation


METERED = "kind: cost\nprice_per_gpu_hour: 0.36\nenergy_price_per_kwh: 36\njoules_per_verified_token: 10"
"""0.0001 a second, and as much for a verified token."""


def test_energy_makes_drafts_cost_money_that_cost_little_time() -> None:
    fast, cheap = (Machine(batch=1, accept=0.6, rows=uniform_rows(4)) for _ in range(2))
    Steered(fast, "kind: cost\nprice_per_gpu_hour: 0.36").run(20)
    plans = Steered(cheap, METERED).run(20)
    assert fast.at().num_speculative_tokens >= 4
    assert cheap.at().num_speculative_tokens == 0
    assert plans[-1].has_prices


def test_without_a_price_of_energy_cost_chooses_as_goodput_does() -> None:
    rows = []
    for text in ("kind: goodput", "kind: cost\nprice_per_gpu_hour: 2.5"):
        machine = Machine(batch=32, accept=0.6)
        Steered(machine, text).run(20)
        rows.append(machine.rows)
    assert [row.setting for row in rows[0]] == [row.setting for row in rows[1]]


def test_rows_verify_only_tokens_that_are_likely_enough_to_pay() -> None:
    quiet, full = (Machine(batch=batch, accept=0.8, min_token_prob=0.0) for batch in (1, 32))
    for machine in (quiet, full):
        Steered(machine).run(40)
    assert (full.at().min_token_prob or 0.0) >= 0.2
    assert (quiet.at().min_token_prob or 0.0) < (full.at().min_token_prob or 0.0)
    blind = Machine(batch=32, accept=0.8)
    Steered(blind).run(40)
    assert all(row.min_token_prob is None for row in blind.rows)


# Little or nothing is known.


def test_nothing_is_done_without_the_table_in_force() -> None:
    controller = Controller()
    seen = observation(cell(), capabilities=capabilities())
    controller.learn(seen)
    plan = controller.plan(seen, policy())
    assert (plan.rows, plan.reason) == (None, Reason.NOT_MEASURED)


def test_a_server_that_refuses_tables_says_why() -> None:
    controller = Controller()
    engine_capabilities = capabilities(why_not_controllable="started with --x")
    seen = observation(cell(), capabilities=engine_capabilities, applied=applied())
    controller.learn(seen)
    plan = controller.plan(seen, policy())
    assert (plan.rows, plan.reason, plan.explanation) == (None, Reason.NOT_CONTROLLABLE, "started with --x")


def test_a_server_without_the_plugin_gets_a_recommendation() -> None:
    controller = Controller()
    seen = observation()
    controller.learn(seen)
    assert controller.space is None
    assert controller.plan(seen, policy()).reason is Reason.NOT_CONTROLLABLE


def test_a_poll_without_differences_changes_nothing() -> None:
    machine = Machine(accept=0.9, rows=uniform_rows(4))
    controller = Controller()
    seen = replace(machine.poll(), cells=None, interval_s=None)
    controller.learn(seen)
    plan = controller.plan(seen, policy())
    assert not plan.is_change
    assert plan.reason is Reason.IDLE


def test_a_first_poll_without_the_cost_of_a_step_waits() -> None:
    machine = Machine(accept=0.9, rows=uniform_rows(4))
    seen = machine.poll()
    only_prompts = tuple(
        one.model_copy(update={"has_prefill": True, "step_s": 0.0, "step_s_squared": 0.0})
        for one in seen.cells or ()
    )
    controller = Controller()
    seen = replace(seen, cells=only_prompts)
    controller.learn(seen)
    plan = controller.plan(seen, policy())
    assert not plan.is_change
    assert plan.reason is Reason.COST_UNKNOWN


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["kind: goodput", METERED, "kind: slo\nmax_tpot_ms: 4", "kind: goodput\nmax_itl_ms: 9"]),
    st.sampled_from([chains(0, 1, 2, 4, 8), TREES, chains(3, 5)]),
)
def test_any_traffic_gives_tables_that_the_engine_takes_and_that_stay_for_a_while(
    seed: int, text: str, prepared: tuple[Setting, ...]
) -> None:
    rng = np.random.default_rng(seed)
    start = int(rng.choice([one.num_speculative_tokens for one in prepared if one.tree_topk == 1]))
    machine = Machine(settings=prepared, rows=uniform_rows(start), rng=rng, min_token_prob=0.0, noise=0.3)
    steered = Steered(machine, text)
    plans = []
    for _ in range(12):
        machine.batch = int(rng.choice([0, 1, 3, 8, 32]))
        machine.accept = float(rng.choice([0.0, 0.3, 0.9, 1.0]))
        machine.prompts = int(rng.choice([0, 3, 10]))
        plans += steered.run(3)
    dwell_s = steered.policy.guard_rails.dwell_s
    changed_s: dict[int, float] = {}
    was_early: set[int] = set()
    for plan in plans:
        assert plan.rows is not None
        for choice in plan.changed:
            if set(knobs_moved(choice.before, choice.after)) <= {"min_token_prob"}:
                continue
            is_early = plan.time_s - changed_s.get(choice.last, -9.0) < dwell_s
            assert not (is_early and choice.last in was_early)
            (was_early.add if is_early else was_early.discard)(choice.last)
            changed_s[choice.last] = plan.time_s
