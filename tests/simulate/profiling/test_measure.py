"""Measuring a fake server: what it is asked to do meanwhile, and how it is left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from fakes.engine import Cost, FakeEngine, Traffic
from fakes.load import EngineClock

from specctl.contract.classes import ClassLimit
from specctl.contract.table import TablePut, TableRow, TableState, uniform_rows
from specctl.engine_api.client import EngineClient
from specctl.errors import ContractError, LeaseHeld, SpecctlError, TargetError, VersionConflict
from specctl.http_client import HttpClient, Response
from specctl.simulate.profiling.cost_fit import fit_costs
from specctl.simulate.profiling.measure import Measured, Plan, combinations, few_numbers, measure
from specctl.simulate.profiling.steps import StepReader
from specctl.simulate.profiling.synthetic_load import SyntheticLoad
from specctl.simulate.profiling.temporary_table import TemporaryTable

ROWS = (
    TableRow(decode_batch_from=1, decode_batch_to=4, num_speculative_tokens=4),
    TableRow(decode_batch_from=5, num_speculative_tokens=1),
)
Events = Mapping[int, Callable[[], object]]


def measured(
    engine: FakeEngine,
    *,
    seconds: float = 60.0,
    events: Events | None = None,
    own: Any = None,
    stop: asyncio.Event | None = None,
) -> Measured:
    """``events`` happen after the sleep of that number, before what follows it."""

    async def run() -> Measured:
        clock = EngineClock(engine, events)
        async with EngineClient(HttpClient(engine.url, timeout_s=5.0)) as client:
            capabilities = await client.capabilities()
            assert capabilities is not None
            table = TemporaryTable(client, capabilities, clock, owner="profile@test")
            steps = StepReader(client)
            plan = Plan(seconds, 0.2)
            return await measure(table, steps, capabilities, clock, stop or asyncio.Event(), plan, own)

    return asyncio.run(run())


def put(engine: FakeEngine, *, owner: str, lease_s: float | None, tokens: int = 7) -> None:
    change = TablePut(
        base_version=engine.version,
        rows=uniform_rows(tokens),
        lease_s=lease_s,
        fallback_num_speculative_tokens=0,
        owner=owner,
    )
    status, _ = engine.put(change.model_dump_json().encode())
    assert status == 200


PLAIN = ClassLimit(kind="plain", max_num_speculative_tokens=0)


def assert_as_found(engine: FakeEngine) -> None:
    assert engine.rows == ROWS
    assert engine.lease_s is None
    assert engine.fallback == 3


@pytest.fixture
def engine() -> Any:
    traffic, cost = Traffic(decode_batch=3), Cost(noise_ratio=0.02)
    with FakeEngine(traffic=traffic, cost=cost, class_limits_max=16) as engine:
        change = TablePut(
            base_version=0,
            rows=ROWS,
            fallback_num_speculative_tokens=3,
            owner="somebody",
            class_limits=(PLAIN,),
        )
        engine.put(change.model_dump_json().encode())
        engine.puts.clear()
        engine.advance(5.0)
        yield engine


@pytest.mark.parametrize(
    ("legal", "few"),
    [(range(9), [0, 2, 4, 8]), (range(5), [0, 1, 2, 4]), ([0, 3, 5], [0, 3, 5]), ([4], [4])],
)
def test_a_few_of_the_legal_numbers(legal: list[int], few: list[int]) -> None:
    assert set(few_numbers(list(legal))) == set(few)


def test_costs_are_found_within_the_share_and_the_table_is_as_before(engine: FakeEngine) -> None:
    result = measured(engine)
    costs = fit_costs(result.rows)
    for tokens in (3, 9, 27):
        fitted = _forward_s(costs.forward, tokens) + costs.terms["request_s"] * 3
        assert fitted == pytest.approx(0.08 + 0.004 * tokens, rel=0.05)
    assert result.seconds <= 61.0
    assert 0.0 < result.disturbed_s / result.seconds <= 0.21
    assert {row.num_speculative_tokens for row in result.rows} == {0, 2, 4, 8}
    assert_as_found(engine)


def _forward_s(forward: tuple[tuple[int, float], ...], tokens: int) -> float:
    xs, ys = zip(*forward, strict=True)
    return float(np.interp(tokens, xs, ys))


def test_only_a_held_number_has_a_lease_and_the_present_loads_number_follows_it(engine: FakeEngine) -> None:
    measured(engine, seconds=20.0)
    holds = [change for change in engine.puts if change.rows != ROWS]
    rests = [change for change in engine.puts if change.rows == ROWS]
    assert holds
    assert all(change.lease_s == 10.0 for change in holds)
    assert all(change.fallback_num_speculative_tokens == 4 for change in holds)
    assert all(change.lease_s is None for change in rests)
    assert {change.owner for change in engine.puts} == {"profile@test"}
    assert {change.class_limits for change in engine.puts} == {(PLAIN,)}
    assert len(rests) == len(holds)


def test_another_owners_lease_is_respected(engine: FakeEngine) -> None:
    put(engine, owner="autotune", lease_s=30.0)
    with pytest.raises(LeaseHeld, match="autotune"):
        measured(engine)
    assert engine.owner == "autotune"
    assert len(engine.puts) == 1


@pytest.mark.parametrize("lease_s", [None, 30.0])
def test_an_owner_who_comes_while_the_found_table_rests_stays(
    engine: FakeEngine, lease_s: float | None
) -> None:
    def come() -> None:
        if not came and engine.rows == ROWS and engine.owner == "profile@test":
            came.append(True)
            put(engine, owner="autotune", lease_s=lease_s)

    came: list[bool] = []
    with pytest.raises((LeaseHeld, VersionConflict)):
        measured(engine, events=dict.fromkeys(range(1, 400), come))
    assert engine.owner == "autotune"
    assert engine.rows == uniform_rows(7)


def test_what_cannot_be_controlled_or_has_no_traffic_is_refused(engine: FakeEngine) -> None:
    engine.mangle["/specctl/v1/capabilities"] = lambda body: body.replace(
        b'"controllable":true', b'"controllable":false'
    )
    with pytest.raises(ContractError, match="cannot be changed"):
        measured(engine)
    engine.mangle.clear()
    engine.traffic = None
    with pytest.raises(SpecctlError, match="no traffic to measure; with --requests"):
        measured(engine)
    assert not engine.puts


def test_a_stop_puts_the_table_back_at_once(engine: FakeEngine) -> None:
    stop = asyncio.Event()

    def end() -> None:
        if engine.rows != ROWS:
            stop.set()

    result = measured(engine, stop=stop, events=dict.fromkeys(range(1, 400), end))
    assert result.is_interrupted
    assert_as_found(engine)


def test_an_error_puts_the_table_back(engine: FakeEngine) -> None:
    def fail() -> None:
        if engine.rows != ROWS:
            engine.forced_status["/specctl/v1/telemetry"] = 503

    with pytest.raises(TargetError, match="503"):
        measured(engine, events=dict.fromkeys(range(1, 400), fail))
    assert_as_found(engine)


def test_a_lost_answer_does_not_leave_our_table(engine: FakeEngine) -> None:
    def broken_once(body: bytes) -> bytes:
        if engine.rows == ROWS:
            return body
        engine.mangle.clear()
        return b"{"

    engine.mangle["/specctl/v1/table"] = broken_once
    with pytest.raises(ContractError):
        measured(engine)
    assert_as_found(engine)


def test_a_server_that_lies_about_its_table_is_left(engine: FakeEngine) -> None:
    engine.mangle["/specctl/v1/table"] = lambda body: body.replace(
        b'"num_speculative_tokens": 0', b'"num_speculative_tokens": 5'
    )
    with pytest.raises(ContractError, match="applied another table"):
        measured(engine)
    assert_as_found(engine)


def test_a_restart_ends_it_and_leaves_the_new_servers_table(engine: FakeEngine) -> None:
    with pytest.raises(TargetError, match="restarted while it was measured"):
        measured(engine, events={20: engine.restart})
    assert engine.state is TableState.START


def test_a_killed_measurement_leaves_the_found_number_after_the_lease(engine: FakeEngine) -> None:
    """The last hold's lease ends by itself, as if this process had been killed in it."""
    measured(engine, seconds=20.0)
    hold = next(change for change in engine.puts if change.rows != ROWS)
    engine.put(hold.model_copy(update={"base_version": engine.version}).model_dump_json().encode())
    engine.advance(11.0)
    assert engine.tokens_at(3) == 4


class FakeOwn:
    """Requests that show in the fake engine's decode batch."""

    def __init__(self, engine: FakeEngine, total: int) -> None:
        self.engine, self.left, self.sent, self.levels = engine, total, 0, set[int]()
        self.is_stopped = False

    @property
    def are_spent(self) -> bool:
        return self.left <= 0

    def at(self, level: int, *, is_long: bool) -> None:
        self.levels.add(level)
        self.left -= 1
        self.sent += 1
        self.engine.traffic = Traffic(decode_batch=level)

    async def stop(self) -> None:
        self.engine.traffic = None
        self.is_stopped = True


def test_own_requests_go_through_levels_on_an_idle_server(engine: FakeEngine) -> None:
    engine.traffic = None
    own = FakeOwn(engine, 10_000)
    result = measured(engine, own=own)
    assert own.levels == {1, 2, 4, 8}
    assert own.is_stopped
    assert result.disturbed_steps == 0
    assert {row.num_speculative_tokens for row in result.rows} >= {0, 2, 4, 8}
    assert_as_found(engine)


@pytest.mark.parametrize("numbers", [[0, 2, 4, 8], [0, 3, 5]])
def test_every_level_and_every_number_meet_long_and_short_prompts(numbers: list[int]) -> None:
    levels = [1, 2, 4, 8]
    made = combinations(levels, numbers)
    assert [(level, number) for level, number, _ in made] == [(a, b) for a in levels for b in numbers]
    for place, value in [(0, one) for one in levels] + [(1, one) for one in numbers]:
        assert {one[2] for one in made if one[place] == value} == {True, False}


def test_own_requests_are_bounded_and_not_sent_beside_others(engine: FakeEngine) -> None:
    spent = FakeOwn(engine, 3)
    assert measured(engine, own=spent).own_requests == 0
    engine.traffic = None
    measured(engine, own=spent)
    assert spent.levels == {1}
    assert_as_found(engine)


def test_a_long_prompt_is_several_times_a_short_one() -> None:
    async def words(is_long: bool) -> list[int]:
        client = Posted()
        own = SyntheticLoad(client, "m", total=50, context_max_tokens=2048)  # type: ignore[arg-type]
        own.at(50, is_long=is_long)
        await asyncio.sleep(0.01)
        return [len(json.loads(body)["prompt"].split()) for body in client.bodies]

    long, short = asyncio.run(words(True)), asyncio.run(words(False))
    assert len(long) == len(short) == 50
    assert min(long) > 4 * max(short)


class Posted:
    """In place of an HTTP client."""

    target = "http://s:1"

    def __init__(self, status: int = 200) -> None:
        self.status, self.bodies = status, list[bytes]()

    async def post(self, path: str, body: bytes) -> Response:
        self.bodies.append(body)
        await asyncio.sleep(0)
        return Response(self.status, b"no such model")


def test_requests_are_sent_up_to_their_number_and_fail_loudly() -> None:
    async def run(client: Posted) -> int:
        own = SyntheticLoad(client, "m", total=5, context_max_tokens=2048)  # type: ignore[arg-type]
        try:
            for _ in range(10):
                own.at(2, is_long=True)
                await asyncio.sleep(0.001)
            assert own.are_spent
            return own.sent
        finally:
            await own.stop()

    client = Posted()
    assert asyncio.run(run(client)) == 5
    assert len(set(client.bodies)) == 5, "each begins in its own way"
    with pytest.raises(TargetError, match="HTTP 404: no such model"):
        asyncio.run(run(Posted(404)))
