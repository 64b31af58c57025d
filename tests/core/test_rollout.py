"""A group on virtual time: servers that run the rows they are given, at rates set by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from fakes.machine import policy
from fakes.observations import applied, capabilities, cell, chains, observation, tree

from specctl.contract.classes import ClassLimit
from specctl.contract.setting import Setting
from specctl.contract.table import TableRow, uniform_rows
from specctl.contract.telemetry import TelemetryCell
from specctl.core.controller import Controller
from specctl.core.messages import Plan, Reason
from specctl.core.rollout import RolloutGroup, ServerState, is_more
from specctl.core.settings import RolloutSettings
from specctl.core.table_rows import row_at
from specctl.policy.models import AnyPolicy

SETTINGS = RolloutSettings(canary_s=10.0, canary_loss_max_ratio=0.05, pause_s=60.0)
BUCKETS = (1, 2, 4)
LIMIT = ClassLimit(kind="chat", max_num_speculative_tokens=0)
CAPABILITIES = capabilities(chains(*range(9)), BUCKETS, class_limits_max=4, min_token_prob=0.0)


def wants(text: str) -> AnyPolicy:
    return policy(f"{text}\nsampling: {{share_max_ratio: 0}}")


def tokens(number: int, rules: str = "") -> AnyPolicy:
    return wants(f"kind: fixed\nnum_speculative_tokens: {number}\n{rules}")


def up_to(**by_bucket: int) -> AnyPolicy:
    """By the bucket's last batch: b1=4, b2=0, b4=8."""
    ends = [int(name[1:]) for name in by_bucket]
    rows = [
        f"{{decode_batch_to: {end if end < 4 else 'null'}, num_speculative_tokens: {number}}}"
        for end, number in zip(ends, by_bucket.values(), strict=True)
    ]
    return wants(f"kind: thresholds\nthresholds: [{', '.join(rows)}]")


@dataclass
class Server:
    """``rate_at``: tokens per second of a request by number of drafted tokens; else ``rate``."""

    name: str
    start: int = 0
    rate: float = 10.0
    rate_at: dict[int, float] = field(default_factory=dict)
    busy: tuple[int, ...] = (1,)
    boot_id: str = "boot"
    obeys: bool = True
    refuses: bool = False
    class_limits: tuple[ClassLimit, ...] = ()
    rate_without_limits: float | None = None

    def __post_init__(self) -> None:
        self.rows: tuple[TableRow, ...] = uniform_rows(self.start)
        self.controller = Controller()

    def restart(self) -> None:
        self.boot_id += "'"
        self.rows, self.class_limits, self.controller = uniform_rows(self.start), (), Controller()

    def at(self, bucket: int) -> Setting:
        row = row_at(self.rows, bucket)
        assert row is not None
        return row.setting

    def cells(self) -> tuple[TelemetryCell, ...]:
        found = []
        for bucket in self.busy:
            number = self.at(bucket).num_speculative_tokens
            rate = self.rate_at.get(number, self.rate)
            if self.rate_without_limits is not None and not self.class_limits:
                rate = self.rate_without_limits
            one = cell(decode_batch=bucket, tokens=number, accepted_at=(0,) * number)
            found.append(
                one.model_copy(
                    update={
                        "emitted_tokens": round(rate * one.request_steps * 10),
                        "step_s": one.steps * 10.0,
                    }
                )
            )
        return tuple(found)


class Course:
    """Every server is polled once a second, as the daemon does it."""

    def __init__(self, *servers: Server, settings: RolloutSettings = SETTINGS) -> None:
        self.servers, self.settings = servers, settings
        self.group = RolloutGroup()
        self.time_s = 100.0
        self.events: list[tuple[str, str]] = []
        self.words: list[str] = []
        for server in servers:
            self.group.join(server.name)

    def poll(self, server: Server, wanted: AnyPolicy) -> Plan:
        seen = observation(
            *server.cells(),
            time_s=self.time_s,
            capabilities=CAPABILITIES,
            applied=applied(server.rows, class_limits=server.class_limits),
            target=server.name,
        )
        server.controller.learn(seen)
        in_force = {bucket: server.at(bucket) for bucket in BUCKETS}
        state = ServerState(
            server.name, server.boot_id, self.time_s, in_force, server.class_limits, seen.cells or (), 0.0
        )

        def within() -> Plan:
            held = self.group.held(state, server.controller.class_limits(wanted), self.settings)
            return server.controller.plan(seen, wanted, held)

        events = list(self.group.polled(state, self.settings))
        plan = within()
        may_start, started = self.group.try_start(state, plan)
        plan = plan if may_start else within()
        if server.refuses:
            self.group.refused(server.name, self.time_s)
        else:
            assert plan.rows is not None
            if server.obeys:
                server.rows, server.class_limits = plan.rows, plan.class_limits
            server.controller.accepted(plan)
            self.group.accepted(server.name, plan)
        for event in (*events, *started):
            self.events.append((event.name, event.target))
            self.words.append(event.words)
        return plan

    def run(self, seconds: int, wanted: AnyPolicy, *only: Server) -> list[Plan]:
        plans = []
        for _ in range(seconds):
            self.time_s += 1.0
            plans += [self.poll(server, wanted) for server in only or self.servers]
        return plans

    def at(self, bucket: int) -> list[int]:
        return [server.at(bucket).num_speculative_tokens for server in self.servers]


def test_more_drafts_go_to_one_server_and_then_to_the_others() -> None:
    course = Course(Server("a"), Server("b"), Server("c"))
    course.run(3, tokens(0))
    plans = course.run(1, tokens(8))
    assert course.at(1) == [8, 0, 0]
    assert [plan.reason for plan in plans[1:]] == [Reason.CANARY_WAIT] * 2
    assert "a goes first" in plans[1].explanation
    course.run(9, tokens(8))
    assert course.at(1) == [8, 0, 0]
    course.run(2, tokens(8))
    assert course.at(1) == [8, 8, 8]
    assert course.at(4) == [0, 0, 0], "no server had 4 decoding, so nothing was tried there"
    assert course.events == [("canary", "a"), ("canary_passed", "a")]
    assert course.words[0] == "canary: batch up to 1: off -> 8 tokens"


def test_a_fuller_batch_that_passed_speaks_for_the_smaller_ones() -> None:
    course = Course(Server("a", busy=(4,)), Server("b"))
    course.run(20, tokens(8))
    assert (course.at(4), course.at(1)) == ([8, 8], [8, 8])


def test_fewer_drafts_go_everywhere_at_once() -> None:
    course = Course(*(Server(name, start=8) for name in "abc"))
    course.run(1, tokens(0))
    assert course.at(1) == course.at(4) == [0, 0, 0]
    assert course.events == []


def test_a_canary_that_is_worse_goes_back_and_the_change_waits() -> None:
    course = Course(*(Server(name, rate_at={8: 8.0}) for name in "abc"))
    course.run(3, tokens(0))
    course.run(15, tokens(8))
    assert course.at(1) == [0, 0, 0]
    assert course.events == [("canary", "a"), ("rollback", "a")]
    assert "80% of the tokens per second of a request before it" in course.words[1]
    plan = course.run(40, tokens(8))[-1]
    assert course.at(1) == [0, 0, 0]
    assert plan.reason is Reason.CANARY_WAIT
    assert "8 tokens failed on a canary; waits" in plan.explanation
    course.run(30, tokens(4))
    assert course.at(1) == [4, 4, 4], "a smaller change, once the pause is over"


def test_a_canary_that_is_far_worse_goes_back_before_its_time() -> None:
    course = Course(*(Server(name, rate_at={8: 2.0}) for name in "ab"))
    course.run(3, tokens(0))
    course.run(6, tokens(8))
    assert course.at(1) == [0, 0]
    assert ("rollback", "a") in course.events


def test_noise_alone_is_no_loss() -> None:
    course = Course(Server("a"), Server("b"))
    for i in range(40):
        for server in course.servers:
            server.rate = 10.0 + (2.0 if i % 2 else -2.0)
        course.run(1, tokens(8 if i > 10 else 0))
    assert course.at(1) == [8, 8]


def test_while_one_is_tried_nothing_else_is_raised_but_lowering_goes_on() -> None:
    a, b = Server("a", busy=(1, 2)), Server("b", busy=(1, 2))
    b.rows = (
        TableRow(decode_batch_from=1, decode_batch_to=1, num_speculative_tokens=0),
        TableRow(decode_batch_from=2, num_speculative_tokens=6),
    )
    course = Course(a, b)
    course.run(3, up_to(b1=0, b4=6), b)
    course.run(3, tokens(0), a)
    course.run(1, up_to(b1=5, b4=0))
    assert course.at(1) == [5, 0]
    assert course.at(2) == [0, 0]
    course.run(1, up_to(b1=5, b2=3, b4=0))
    assert course.at(2) == [0, 0]


def test_a_canary_that_wants_fewer_by_itself_ends_its_trial() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, tokens(0))
    course.run(4, tokens(8))
    course.run(2, tokens(2))
    assert course.at(1) == [2, 2]
    assert course.events[0] == ("canary", "a")
    assert course.events[-1] == ("canary", "b")


def test_a_server_that_is_alone_needs_no_canary() -> None:
    course = Course(Server("a", busy=()))
    course.run(1, tokens(8))
    assert course.at(1) == course.at(4) == [8]
    assert course.events == []


def test_no_canary_when_the_policy_wants_none() -> None:
    course = Course(Server("a", busy=()), Server("b"), settings=with_settings(canary_s=0.0))
    course.run(1, tokens(8))
    assert course.at(1) == [8, 8]
    course.run(5, tokens(8))
    assert (course.at(1), course.events) == ([8, 8], [])


def test_a_change_without_traffic_waits_for_traffic() -> None:
    course = Course(Server("a", busy=()), Server("b", busy=()))
    plan = course.run(100, tokens(8))[-1]
    assert course.at(1) == [0, 0]
    assert plan.choices[0].detail == "too little traffic to judge it by"
    course.servers[1].busy = (1,)
    course.run(20, tokens(8))
    assert course.at(1) == [8, 8]
    assert course.events[0] == ("canary", "b")


def test_a_canary_whose_traffic_ends_goes_back_and_lets_another_go_first() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, tokens(0))
    course.run(1, tokens(8))
    course.servers[0].busy = ()
    course.run(29, tokens(8))
    assert course.at(1) == [8, 0]
    course.run(2, tokens(8))
    assert course.at(1)[0] == 0
    course.servers[0].busy = (1,)
    course.run(20, tokens(8))
    assert course.at(1) == [8, 8]
    assert [event for event, _ in course.events] == ["canary", "canary_ended", "canary", "canary_passed"]


def test_a_canary_that_leaves_the_group_frees_the_place() -> None:
    course = Course(Server("a"), Server("b"), Server("c"))
    course.run(3, tokens(0))
    course.run(1, tokens(8))
    course.group.leave("a")
    course.run(20, tokens(8), *course.servers[1:])
    assert course.at(1)[1:] == [8, 8]
    assert ("canary", "b") in course.events


def test_a_freeze_ends_the_trial_without_a_verdict() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, tokens(0))
    course.run(1, tokens(8))
    course.group.withdraw("a")
    assert course.group.canary is None
    assert course.at(1) == [8, 0], "it keeps its table"


def test_a_canary_that_is_not_heard_of_any_more_has_failed_and_goes_back_when_it_returns() -> None:
    course = Course(Server("a"), Server("b"), Server("c"))
    course.run(3, tokens(0))
    course.run(2, tokens(8))
    course.run(32, tokens(8), *course.servers[1:])
    assert ("rollback", "a") in course.events
    assert course.at(1) == [8, 0, 0]
    course.run(1, tokens(8))
    assert course.at(1) == [0, 0, 0]
    course.run(80, tokens(8))
    assert course.at(1) == [8, 8, 8]
    assert course.events[-2:] == [("canary", "b"), ("canary_passed", "b")], "a is not trusted to go first"


def test_a_canary_that_restarts_during_its_trial_has_failed() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, tokens(0))
    course.run(3, tokens(8))
    course.servers[0].restart()
    course.run(30, tokens(8))
    assert course.at(1) == [0, 0]
    assert course.events == [("canary", "a"), ("rollback", "a")]


def test_a_canary_that_does_not_do_what_it_says_is_no_proof() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, tokens(0))
    course.servers[0].obeys = False
    course.run(40, tokens(8))
    assert course.at(1) == [0, 8]
    assert [one for one in course.events if one[0] == "canary_passed"] == [("canary_passed", "b")]


def test_a_trial_that_the_engine_refuses_has_not_begun() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, tokens(0))
    course.servers[0].refuses = True
    course.run(12, tokens(8))
    assert course.at(1) == [0, 8]
    assert ("canary_passed", "b") in course.events


@pytest.mark.parametrize("jump_s", [-500.0, 50_000.0])
def test_a_clock_that_jumps_gives_no_verdict(jump_s: float) -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, tokens(0))
    course.run(2, tokens(8))
    course.time_s += jump_s
    course.run(1, tokens(8))
    assert ("canary_passed", "a") not in course.events
    assert course.at(1).count(8) <= 1
    course.run(200, tokens(8))
    assert course.at(1) == [8, 8]


def test_an_approval_ends_when_nobody_uses_it() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(20, tokens(8))
    course.run(500, tokens(0))
    course.run(1, tokens(8))
    assert course.at(1) == [8, 8]
    course.run(700, tokens(0))
    course.run(1, tokens(8))
    assert course.at(1) == [8, 0]


def test_a_table_that_somebody_else_raised_is_where_the_server_stands() -> None:
    course = Course(Server("a"), Server("b"))
    course.run(3, tokens(0))
    course.servers[1].rows = uniform_rows(7)
    course.run(1, tokens(7), course.servers[1])
    assert course.at(4) == [0, 7]


# Probabilities and rules for classes.


def with_prob(server: Server, prob: float) -> None:
    server.rows = tuple(row.model_copy(update={"min_token_prob": prob}) for row in server.rows)


@pytest.mark.parametrize(
    ("after", "before", "is_it"),
    [
        (chains(4)[0], chains(2)[0], True),
        (chains(2)[0], chains(4)[0], False),
        (tree(4, 4, 9), chains(4)[0], True),
        (chains(4)[0], tree(4, 4, 9), False),
        (tree(2, 4, 9), chains(4)[0], True),
        (chains(4)[0], chains(4)[0], False),
        (Setting(num_speculative_tokens=4, min_token_prob=0.2), chains(4)[0], False),
        (Setting(num_speculative_tokens=4, min_token_prob=0.2),
         Setting(num_speculative_tokens=4, min_token_prob=0.4), True),
        (Setting(num_speculative_tokens=4), Setting(num_speculative_tokens=4, min_token_prob=0.4), True),
        (Setting(num_speculative_tokens=0), Setting(num_speculative_tokens=4, min_token_prob=0.4), False),
    ],
)  # fmt: skip
def test_what_counts_as_more_speculation(after: Setting, before: Setting, is_it: bool) -> None:
    assert is_more(after, before) is is_it


def rules(is_there: bool) -> AnyPolicy:
    return tokens(4, "classes: [{kind: chat, max_num_speculative_tokens: 0}]" if is_there else "")


def limited(*servers: Server) -> Course:
    course = Course(*servers)
    for server in servers:
        server.rows = uniform_rows(4)
    course.run(4, rules(True))
    assert all(server.class_limits == (LIMIT,) for server in servers)
    return course


def test_more_rules_for_classes_reach_every_server_at_once() -> None:
    assert limited(Server("a"), Server("b")).events == []


def test_fewer_rules_for_classes_are_tried_on_one_server_first() -> None:
    course = limited(Server("a"), Server("b"))
    course.run(1, rules(False))
    assert [server.class_limits for server in course.servers] == [(), (LIMIT,)]
    assert course.words == ["canary: rules for traffic classes"]
    course.run(11, rules(False))
    assert [server.class_limits for server in course.servers] == [(), ()]
    assert course.events == [("canary", "a"), ("canary_passed", "a")]


def test_rules_that_were_missed_come_back_and_the_change_waits() -> None:
    course = limited(*(Server(name, rate_without_limits=5.0) for name in "ab"))
    course.run(20, rules(False))
    assert course.events == [("canary", "a"), ("rollback", "a")]
    assert [server.class_limits for server in course.servers] == [(LIMIT,), (LIMIT,)]
    course.run(60, rules(False))
    assert course.events.count(("canary", "a")) + course.events.count(("canary", "b")) == 2


def with_settings(**changes: float) -> RolloutSettings:
    return SETTINGS.model_copy(update=changes)
