"""Above an engine that adapts by itself: what is left to it, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.observations import applied, capabilities, cell, observation

from specctl.contract.adaptivity import AdaptivityState, EngineAdaptivity
from specctl.contract.table import uniform_rows
from specctl.core.controller import Controller
from specctl.core.messages import Plan, Reason
from specctl.core.supervision import Switches, adaptivity_words
from specctl.policy.loader import parse_policy
from specctl.types import Observation

BOUNDED = EngineAdaptivity(name="enable_adaptive_verification", decides="verified", is_bounded=True)
FREE = EngineAdaptivity(name="DSPARK", decides="verified", is_bounded=False)
REPLACED = EngineAdaptivity(
    name="speculative_adaptive", decides="drafted", is_bounded=False, is_replaced=True
)
SUPERVISE = parse_policy("kind: goodput\nmode: supervise\nguard_rails: {dwell_s: 0}", "p")
CHOOSE = parse_policy("kind: goodput\nguard_rails: {dwell_s: 0}", "p")


def seen(
    engine: EngineAdaptivity | None,
    *,
    is_on: bool = True,
    rows: int = 4,
    drafted: float = 2.0,
    step_s: float = 0.1,
    boot: str = "a",
    time_s: float = 1.0,
) -> Observation:
    """A second of one request that drafts ``rows`` tokens of which few are accepted, and of sampled off."""
    engine_capabilities = capabilities(buckets=(1,)).model_copy(
        update={"adaptivity": engine, "boot_id": boot}
    )
    drafting = cell(
        steps=40,
        tokens=rows,
        accepted_at=(20, 2, 0, 0)[:rows],
        step_s=step_s,
        drafted_at=(40, 40, 0, 0)[:rows],
    )
    off = cell(steps=10, tokens=0, accepted_at=(), step_s=0.08, sampled_steps=10)
    found = observation(
        *([drafting] if rows else []),
        off,
        capabilities=engine_capabilities,
        applied=applied(uniform_rows(rows)),
        time_s=time_s,
    )
    state = None if engine is None else AdaptivityState(is_on=is_on)
    return replace(found, adaptivity=state)


def planned(policy: object, *observations: Observation) -> Plan:
    controller = Controller()
    for one in observations:
        controller.learn(one)
    return controller.plan(observations[-1], policy)  # type: ignore[arg-type]


def polls(count: int, **more: object) -> list[Observation]:
    return [seen(BOUNDED, time_s=float(i), **more) for i in range(count)]  # type: ignore[arg-type]


def test_the_number_is_left_to_the_engine() -> None:
    """A policy that chooses would take fewer tokens at this acceptance."""
    chosen = planned(CHOOSE, *polls(20)).choices[0]
    assert chosen.after.num_speculative_tokens in (1, 2)
    plan = planned(SUPERVISE, *polls(20))
    left = plan.choices[0]
    assert (left.after.num_speculative_tokens, plan.reason) == (4, Reason.SUPERVISED)
    assert "left to the engine's enable_adaptive_verification" in plan.explanation


def test_drafting_that_does_not_pay_is_off() -> None:
    plan = planned(SUPERVISE, *polls(20, step_s=0.2))
    assert plan.choices[0].after.num_speculative_tokens == 0
    assert plan.choices[0].reason is Reason.OFF_NO_GAIN


def test_only_off_and_the_bound_are_sampled() -> None:
    for rows in (0, 4):
        for choice in planned(SUPERVISE, *polls(20, rows=rows)).choices:
            assert choice.sample is None or choice.sample.setting.num_speculative_tokens in (0, 4)


def test_the_policys_bound_is_the_engines() -> None:
    policy = parse_policy(
        "kind: goodput\nmode: supervise\nknobs: {num_speculative_tokens: {max: 2}}",
        "p",
    )
    assert planned(policy, *polls(20)).choices[0].after.num_speculative_tokens == 2


def test_a_table_from_before_goes_to_the_bound() -> None:
    """Where nothing is known yet, not to off."""
    plan = planned(SUPERVISE, replace(seen(BOUNDED, rows=2), cells=()))
    assert plan.choices[0].after.num_speculative_tokens == 4
    assert plan.choices[0].reason is Reason.SUPERVISED


@pytest.mark.parametrize("engine", [None, FREE, REPLACED])
def test_what_the_table_does_not_bound_is_not_supervised(engine: EngineAdaptivity | None) -> None:
    observations = [seen(engine, time_s=float(i)) for i in range(20)]
    same = [seen(None, time_s=float(i)) for i in range(20)]
    assert planned(SUPERVISE, *observations).choices == planned(CHOOSE, *same).choices


def test_off_is_not_supervised() -> None:
    assert planned(SUPERVISE, *polls(20, is_on=False)).choices == planned(CHOOSE, *polls(20)).choices


def names(switches: Switches, *observations: Observation, supervises: bool = True) -> list[str]:
    found = [switches.update(one, supervises=supervises) for one in observations]
    return [event.name for event in found if event is not None]


def test_a_switch_at_run_time_is_an_event() -> None:
    switches = Switches()
    on, off = seen(BOUNDED), seen(BOUNDED, is_on=False)
    assert names(switches, on, on, off, off, on) == ["adaptivity_on", "adaptivity_off", "adaptivity_on"]
    event = switches.update(off, supervises=True)
    assert event is not None
    assert event.is_warning
    assert "switched at run time: the daemon chooses the number" in event.words
    assert event.record == {
        "adaptivity": "enable_adaptive_verification", "is_on": False, "at_run_time": True
    }  # fmt: skip


def test_a_restart_is_no_switch() -> None:
    events = names(Switches(), seen(BOUNDED), seen(BOUNDED, is_on=False, boot="b"), supervises=False)
    assert events == ["adaptivity_on"]


@pytest.mark.parametrize(
    ("engine", "words"),
    [(None, "adapts nothing"), (REPLACED, "taken the place of the engine's speculative_adaptive")],
)
def test_nothing_to_supervise_is_said_once(engine: EngineAdaptivity | None, words: str) -> None:
    switches = Switches()
    event = switches.update(seen(engine), supervises=True)
    assert event is not None
    assert event.name == "not_supervised"
    assert words in event.words
    assert names(switches, seen(engine)) == []
    assert names(Switches(), seen(engine), supervises=False) == []


def test_a_poll_without_telemetry_is_no_switch() -> None:
    switches = Switches()
    blind = replace(seen(BOUNDED), adaptivity=None)
    assert names(switches, seen(BOUNDED), blind, seen(BOUNDED)) == ["adaptivity_on"]


def test_words() -> None:
    cells = seen(BOUNDED).cells or ()
    on, off = AdaptivityState(is_on=True), AdaptivityState(is_on=False)
    words = adaptivity_words(BOUNDED, on, cells)
    assert words == "enable_adaptive_verification is on, 2.0 tokens verified, bounded by the rows"
    assert adaptivity_words(BOUNDED, off, cells) == "enable_adaptive_verification is off"
    assert adaptivity_words(FREE, on, ()) == "DSPARK is on, not bounded by the table"
    assert adaptivity_words(REPLACED, off, cells).endswith("the table has taken its place")
