"""The rollout on virtual time: servers that do what they are told, at rates set by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from fakes.observations import cell, observation

from specctl.controller.core import merged_rows
from specctl.controller.rollout import Admission, RolloutGroup, unremembered
from specctl.controller.state import ControllerState
from specctl.estimate.step_cost import DiscountedStepCost
from specctl.estimate.survival import DiscountedSurvival
from specctl.policy.settings import RolloutSettings
from specctl.types import BucketChoice, Decision, Observation, Reason

SETTINGS = RolloutSettings(canary_s=10.0, canary_loss_max_ratio=0.05, pause_s=60.0)
BUCKETS = (1, 2, 4)


@dataclass
class Server:
    """``rate_at``: tokens per second of a request at each number of drafts; else ``rate``."""

    name: str
    table: dict[int, int] = field(default_factory=lambda: dict.fromkeys(BUCKETS, 0))
    rate: float = 10.0
    rate_at: dict[int, float] = field(default_factory=dict)
    busy: tuple[int, ...] = (1,)
    boot_id: str = "boot"
    may_act: bool = True
    obeys: bool = True

    def observation(self, time_s: float) -> Observation:
        cells = []
        for bucket in self.busy:
            tokens = self.table[bucket]
            one = cell(decode_batch=bucket, tokens=tokens, accepted_at=(0,) * tokens)
            rate = self.rate_at.get(tokens, self.rate)
            cells.append(
                replace(one, emitted_tokens=round(rate * one.request_steps * 0.1 * 100), step_s=100.0)
            )
        seen = observation(*cells, time_s=time_s)
        return replace(seen, target=self.name, boot_id=self.boot_id, may_act=self.may_act)


class Course:
    """Every server looks once a second and wants ``wanted`` by bucket (all buckets: an int)."""

    def __init__(self, *servers: Server, settings: RolloutSettings = SETTINGS) -> None:
        self.servers, self.settings = servers, settings
        self.group = RolloutGroup()
        self.time_s = 100.0
        self.events: list[tuple[str, str]] = []
        for server in servers:
            self.group.join(server.name)

    def look(self, server: Server, wanted: int | dict[int, int], reason: Reason = Reason.GAIN) -> Admission:
        by_bucket = wanted if isinstance(wanted, dict) else dict.fromkeys(BUCKETS, wanted)
        choices = tuple(
            BucketChoice(
                bucket,
                bucket,
                server.table[bucket],
                by_bucket[bucket],
                reason,
                is_active=bucket in server.busy,
            )
            for bucket in BUCKETS
        )
        decision = Decision(server.name, self.time_s, merged_rows(choices), reason, "", choices)
        admission = self.group.admit(server.observation(self.time_s), decision, self.settings)
        if server.obeys and server.may_act:
            for choice in admission.decision.choices:
                server.table[choice.decode_batch_to] = choice.num_speculative_tokens
        self.events += [(event.event, event.target) for event in admission.events]
        return admission

    def run(self, seconds: int, wanted: int | dict[int, int], only: tuple[Server, ...] = ()) -> None:
        for _ in range(seconds):
            self.time_s += 1.0
            for server in only or self.servers:
                self.look(server, wanted)

    def at(self, bucket: int) -> list[int]:
        return [server.table[bucket] for server in self.servers]


def test_more_drafts_go_to_one_server_and_then_to_the_others() -> None:
    course = Course(Server("a"), Server("b"), Server("c"))
    course.run(3, 0)
    course.run(1, 8)
    assert course.at(1) == [8, 0, 0]
    course.run(9, 8)
    assert course.at(1) == [8, 0, 0]
    course.run(2, 8)
    assert course.at(1) == [8, 8, 8]
    assert course.at(4) == [0, 0, 0], "no server had 4 decoding, so nothing was tried there"
    assert course.events == [("canary", "a"), ("canary_passed", "a")]


def test_a_fuller_batch_that_passed_speaks_for_the_smaller_ones() -> None:
    course = Course(Server("a", busy=(4,)), Server("b"))
    course.run(20, 8)
    assert (course.at(4), course.at(1)) == ([8, 8], [8, 8])


def test_fewer_drafts_go_everywhere_at_once() -> None:
    course = Course(*(Server(name, table=dict.fromkeys(BUCKETS, 8)) for name in "abc"))
    course.run(1, 0)
    assert course.at(1) == course.at(4) == [0, 0, 0]
    assert course.events == []


def test_a_canary_that_is_worse_goes_back_and_the_change_waits() -> None:
    course = Course(*(Server(name, rate_at={8: 8.0}) for name in "abc"))
    course.run(3, 0)
    course.run(15, 8)
    assert course.at(1) == [0, 0, 0]
    assert course.events == [("canary", "a"), ("rollback", "a")]
    course.run(40, 8)
    assert course.at(1) == [0, 0, 0]
    admission = course.look(course.servers[1], 8)
    assert admission.decision.reason is Reason.CANARY_WAIT
    assert "8 tokens failed on a canary; not again for" in admission.decision.explanation
    # A smaller change is another change.
    course.run(16, 4)
    assert course.at(1) == [4, 4, 4]


def test_a_canary_that_is_far_worse_goes_back_before_its_time() -> None:
    course = Course(*(Server(name, rate_at={8: 2.0}) for name in "ab"))
    course.run(3, 0)
    course.run(6, 8)
    assert course.at(1) == [0, 0]
    assert ("rollback", "a") in course.events


def test_noise_alone_is_no_loss() -> None:
    course = Course(Server("a"), Server("b"))
    for i in range(40):
        for server in course.servers:
            server.rate = 10.0 + (2.0 if i % 2 else -2.0)
        course.run(1, 8 if i > 10 else 0)
    assert course.at(1) == [8, 8]


def test_while_one_is_tried_nothing_else_is_raised_but_lowering_goes_on() -> None:
    course = Course(Server("a", busy=(1, 2)), Server("b", busy=(1, 2), table={1: 0, 2: 6, 4: 6}))
    course.run(3, {1: 0, 2: 6, 4: 6}, only=course.servers[1:])
    course.run(3, 0, only=course.servers[:1])
    course.run(1, {1: 5, 2: 0, 4: 0})
    assert course.at(1) == [5, 0]
    assert course.at(2) == [0, 0]
    course.run(1, {1: 5, 2: 3, 4: 0})
    assert course.at(2) == [0, 0]


def test_a_canary_that_wants_fewer_by_itself_ends_its_trial() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, 0)
    course.run(4, 8)
    course.run(2, 2)
    assert course.events == [("canary", "a"), ("canary_ended", "a"), ("canary", "b")]
    assert course.at(1) == [2, 2]


def test_a_probe_is_let_through_but_what_it_found_is_not() -> None:
    course = Course(Server("a"), Server("b"), settings=replace_settings(canary_s=30.0))
    a, b = course.servers
    course.run(3, 0)
    course.run(5, 8, only=(a,))
    course.time_s += 1.0
    assert course.look(b, 6, Reason.PROBE).held == frozenset()
    assert b.table[1] == 6
    course.time_s += 1.0
    # It paid: the engine has it already, but nobody has granted it.
    admission = course.look(b, 6)
    assert 1 in admission.held
    assert b.table[1] == 0


def test_a_probe_does_not_stand_in_the_way_of_a_rollback() -> None:
    course = Course(*(Server(name, table=dict.fromkeys(BUCKETS, 4), rate_at={8: 5.0}) for name in "ab"))
    a, _ = course.servers
    course.run(3, 4)
    course.run(3, 8)
    assert course.at(1) == [8, 4]
    course.time_s += 1.0
    admission = course.look(a, {1: 0, 2: 4, 4: 4}, Reason.PROBE)
    assert course.events == [("canary", "a"), ("rollback", "a")]
    assert admission.decision.reason is Reason.ROLLBACK
    assert a.table[1] == 4
    course.run(3, 4)
    assert course.at(1) == [4, 4], "4 was granted all the time"


def test_a_server_that_is_alone_needs_no_canary() -> None:
    course = Course(Server("a", busy=()))
    course.run(1, 8)
    assert course.at(1) == course.at(4) == [8]
    assert course.events == []


def test_no_canary_when_the_policy_wants_none() -> None:
    course = Course(Server("a", busy=()), Server("b"), settings=replace_settings(canary_s=0.0))
    course.run(1, 8)
    assert course.at(1) == [8, 8]


def test_a_change_without_traffic_waits_for_traffic() -> None:
    course = Course(Server("a", busy=()), Server("b", busy=()))
    course.run(100, 8)
    assert course.at(1) == [0, 0]
    course.servers[1].busy = (1,)
    course.run(20, 8)
    assert course.at(1) == [8, 8]
    assert course.events[0] == ("canary", "b")


def test_a_canary_whose_traffic_ends_ends_without_a_verdict_and_lets_another_go_first() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, 0)
    course.run(1, 8)
    course.servers[0].busy = ()
    course.run(29, 8)
    assert course.at(1) == [8, 0]
    course.servers[0].busy = (1,)
    course.run(20, 8)
    assert course.at(1) == [8, 8]
    assert [event for event, _ in course.events] == ["canary", "canary_ended", "canary", "canary_passed"]


def test_a_canary_that_vanishes_from_the_group_frees_the_place() -> None:
    course = Course(Server("a"), Server("b"), Server("c"))
    course.run(3, 0)
    course.run(1, 8)
    course.group.leave("a")
    course.run(20, 8, only=course.servers[1:])
    assert course.at(1)[1:] == [8, 8]
    assert ("canary", "b") in course.events


def test_a_canary_that_is_not_heard_of_any_more_has_failed_and_goes_back_when_it_returns() -> None:
    course = Course(Server("a"), Server("b"), Server("c"))
    course.run(3, 0)
    course.run(2, 8)
    course.run(32, 8, only=course.servers[1:])
    assert ("rollback", "a") in course.events
    assert course.at(1) == [8, 0, 0]
    course.run(1, 8)
    assert course.at(1) == [0, 0, 0]
    course.run(80, 8)
    assert course.at(1) == [8, 8, 8]
    assert course.events[-2:] == [("canary", "b"), ("canary_passed", "b")], "a is not trusted to go first"


def test_a_canary_that_restarts_during_its_trial_has_failed() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, 0)
    course.run(3, 8)
    course.servers[0].boot_id = "another"
    course.servers[0].table = dict.fromkeys(BUCKETS, 0)
    course.run(30, 8)
    assert course.at(1) == [0, 0]
    assert course.events == [("canary", "a"), ("rollback", "a")]


def test_a_canary_that_does_not_do_what_it_says_is_no_proof() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, 0)
    course.servers[0].obeys = False
    course.run(29, 8)
    assert course.at(1) == [0, 0]
    course.run(20, 8)
    assert course.at(1) == [0, 8]
    assert [event for event, _ in course.events] == ["canary", "canary_ended", "canary", "canary_passed"]


@pytest.mark.parametrize("jump_s", [-500.0, 50_000.0])
def test_a_clock_that_jumps_gives_no_verdict(jump_s: float) -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, 0)
    course.run(2, 8)
    course.time_s += jump_s
    course.run(1, 8)
    assert ("canary_passed", "a") not in course.events
    assert course.at(1).count(8) <= 1
    course.run(200, 8)
    assert course.at(1) == [8, 8]


def test_an_approval_ends_when_nobody_uses_it() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(20, 8)
    course.run(500, 0)
    course.run(1, 8)
    assert course.at(1) == [8, 8]
    course.run(700, 0)
    course.run(1, 8)
    assert course.at(1) == [8, 0]


def test_a_table_that_somebody_else_raised_is_where_the_server_stands() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, 0)
    course.servers[1].table = dict.fromkeys(BUCKETS, 7)
    course.run(1, {1: 7, 2: 7, 4: 7}, only=course.servers[1:])
    assert course.at(4) == [0, 7]


def test_a_server_that_may_not_be_changed_is_not_judged() -> None:
    course = Course(Server("a", may_act=False), Server("b"))
    course.run(5, 8)
    assert course.at(1) == [0, 8]
    assert course.events == [("canary", "b")]


def test_a_held_change_starts_no_dwell_time_and_uses_up_no_change() -> None:
    before = ControllerState(DiscountedSurvival(), DiscountedStepCost(), {1: 5.0, 4: 6.0}, (5.0, 6.0))
    after = replace(before, changed_s={1: 9.0, 2: 9.0, 4: 9.0}, change_times_s=(5.0, 6.0, 9.0))
    choices = tuple(BucketChoice(b, b, 0, 8, Reason.GAIN) for b in BUCKETS)
    decision = Decision("t", 9.0, (), Reason.GAIN, "", choices)
    some = unremembered(after, before, decision, frozenset({1, 2}))
    assert (some.changed_s, some.change_times_s) == ({1: 5.0, 4: 9.0}, (5.0, 6.0, 9.0))
    every = unremembered(after, before, decision, frozenset(BUCKETS))
    assert (every.changed_s, every.change_times_s) == ({1: 5.0, 4: 6.0}, (5.0, 6.0))
    assert unremembered(after, before, decision, frozenset()) is after


def replace_settings(**changes: float) -> RolloutSettings:
    return SETTINGS.model_copy(update=changes)
