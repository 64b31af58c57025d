"""Counts the steps of a running server under a few numbers of drafts, for bounded shares of its time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from specctl.clock import Clock
from specctl.contract.capabilities import Capabilities
from specctl.contract.telemetry import TelemetryCell
from specctl.errors import SpecctlError
from specctl.simulate.profiling.steps import StepReader, decode_steps
from specctl.simulate.profiling.synthetic_load import SyntheticLoad
from specctl.simulate.profiling.temporary_table import TemporaryTable

__all__ = ["Measured", "Plan", "combinations", "few_numbers", "measure"]

POLL_S = 0.25
# Seconds that the first poll waits for a step.
TRAFFIC_WAIT_S = 3.0
# A number is held until so many steps have gone by, within these seconds.
HOLD_STEPS = 25
HOLD_MIN_S = 0.5
HOLD_MAX_S = 3.0
# Decode-only steps under each number after which there is nothing to gain.
STEPS_ENOUGH = 300
# Steps of the last number may still be running when the next one is put in force.
SETTLE_S = 0.1


@dataclass(frozen=True)
class Plan:
    """``seconds``: of the whole measurement; ``share_max``: of its time under another table than the found
    one, while others' requests run."""

    seconds: float
    share_max: float


@dataclass(frozen=True)
class Measured:
    """``disturbed_steps``, ``disturbed_s``: under a number of ours while others' requests ran."""

    rows: tuple[TelemetryCell, ...]
    seconds: float
    steps: int
    disturbed_steps: int
    disturbed_s: float
    own_requests: int
    is_interrupted: bool


def few_numbers(legal: Sequence[int]) -> list[int]:
    """Off, a quarter, a half and all of the legal numbers."""
    last = len(legal) - 1
    return sorted({legal[0], legal[round(last * 0.25)], legal[round(last * 0.5)], legal[last]})


class _Session:
    def __init__(
        self,
        table: TemporaryTable,
        steps: StepReader,
        capabilities: Capabilities,
        clock: Clock,
        stop: asyncio.Event,
        plan: Plan,
    ) -> None:
        self.table, self.steps, self.clock, self.stop, self.plan = table, steps, clock, stop, plan
        self.capabilities = capabilities
        self.numbers = few_numbers(capabilities.num_speculative_tokens_legal)
        self.started_s = clock.now_s()
        self.disturbed_steps, self.disturbed_s = 0, 0.0

    @property
    def left_s(self) -> float:
        return self.started_s + self.plan.seconds - self.clock.now_s()

    @property
    def is_over(self) -> bool:
        return self.stop.is_set() or self.left_s <= 0

    @property
    def decode_batch(self) -> int:
        return max(self.steps.latest.decoding, 1)

    async def watch(
        self, seconds: float, steps_wanted: int | None, keep: Callable[[], None] | None = None
    ) -> int:
        """Poll until ``seconds`` have passed or ``steps_wanted`` decode-only steps were taken; all steps.
        ``keep``: called between two polls."""
        ends_s = self.clock.now_s() + min(seconds, max(self.left_s, 0.0))
        least_s = self.clock.now_s() + HOLD_MIN_S
        everything = decoding = 0
        while not self.stop.is_set() and (left_s := ends_s - self.clock.now_s()) > 0:
            if keep is not None:
                keep()
            await self.clock.sleep(min(POLL_S, left_s), self.stop)
            gained = await self.steps.poll()
            everything += sum(row.steps for row in gained)
            decoding += decode_steps(gained)
            is_enough = steps_wanted is not None and decoding >= steps_wanted
            if is_enough and self.clock.now_s() >= least_s:
                break
        return everything

    async def hold(self, number: int, seconds: float, keep: Callable[[], None] | None = None) -> int:
        """Steps under a number of ours."""
        await self.table.hold(number, self.decode_batch)
        await self.clock.sleep(SETTLE_S, self.stop)
        return await self.watch(seconds, HOLD_STEPS, keep)

    def steps_under(self) -> Counter[int]:
        """Decode-only steps by number."""
        counts: Counter[int] = Counter()
        for row in self.steps.rows:
            if not row.has_prefill:
                counts[row.num_speculative_tokens] += row.steps
        return counts


async def measure(
    table: TemporaryTable,
    steps: StepReader,
    capabilities: Capabilities,
    clock: Clock,
    stop: asyncio.Event,
    plan: Plan,
    own: SyntheticLoad | None,
) -> Measured:
    """Own requests are sent where nobody else's run. The table is put back whatever happens.

    Raises SpecctlError without traffic and own requests; LeaseHeld and VersionConflict where another owner
    takes the table meanwhile; TargetError and ContractError.
    """
    session = _Session(table, steps, capabilities, clock, stop, plan)
    await table.find()
    try:
        if await _has_traffic(session):
            await _beside_others(session)
        elif own is not None:
            await _alone(session, own)
        elif not stop.is_set():
            raise SpecctlError(
                "the server has no traffic to measure; with --requests N it is sent at most N requests"
            )
    finally:
        try:
            await table.put_back()
        finally:
            if own is not None:
                await own.stop()
    return Measured(
        rows=tuple(steps.rows),
        seconds=clock.now_s() - session.started_s,
        steps=sum(row.steps for row in steps.rows),
        disturbed_steps=session.disturbed_steps,
        disturbed_s=session.disturbed_s,
        own_requests=0 if own is None else own.sent,
        is_interrupted=stop.is_set(),
    )


async def _has_traffic(session: _Session) -> bool:
    """Whether anything runs within the first poll."""
    await session.steps.poll()
    await session.watch(TRAFFIC_WAIT_S, 1)
    return decode_steps(session.steps.rows) > 0 or session.steps.latest.running > 0


async def _beside_others(session: _Session) -> None:
    """Each number in turn for a moment, and the found table for the rest of the time."""
    while not session.is_over:
        done = session.steps_under()
        present = session.table.found_number(session.decode_batch)
        wanted = [n for n in session.numbers if n != present and done[n] < STEPS_ENOUGH]
        if not wanted:
            return
        number = min(wanted, key=lambda n: done[n])
        # A hold whose rest would not fit any more would be over the share.
        hold_s = min(HOLD_MAX_S, session.left_s * session.plan.share_max)
        if hold_s < HOLD_MIN_S:
            return
        began_s = session.clock.now_s()
        session.disturbed_steps += await session.hold(number, hold_s)
        await session.table.rest()
        held_s = session.clock.now_s() - began_s
        session.disturbed_s += held_s
        await session.watch(held_s * (1.0 / session.plan.share_max - 1.0), None)


def combinations(levels: Sequence[int], numbers: Sequence[int]) -> list[tuple[int, int, bool]]:
    """Every number at every level, and whether new prompts are long then: half of a level's numbers meet long
    prompts, at the next level the other half.

    If all requests had equally many, a context token's cost could not be separated from a request's.
    """
    return [
        (level, number, (row + 2 * column // len(numbers)) % 2 == 0)
        for row, level in enumerate(levels)
        for column, number in enumerate(numbers)
    ]


async def _alone(session: _Session, own: SyntheticLoad) -> None:
    """Every number at every level of our own requests, from one to as many as the server takes."""
    levels = [1]
    while levels[-1] * 2 <= session.capabilities.decode_batch_max:
        levels.append(levels[-1] * 2)
    places = combinations(levels, session.numbers)
    for place, (level, number, is_long) in enumerate(places):
        keep = partial(own.at, level, is_long=is_long)
        keep()
        if session.is_over or own.are_spent:
            return
        await session.hold(number, min(HOLD_MAX_S, session.left_s / (len(places) - place)), keep)
