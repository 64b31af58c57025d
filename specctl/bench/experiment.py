"""Runs the plan: in each round every arm has its turn, and in a turn every load runs once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from specctl.bench.arms import Arm, ArmKind
from specctl.bench.autotune_child import TableWatch, autotune
from specctl.bench.borrowed_table import BorrowedTable
from specctl.bench.counters import acceptance_between, read_counters
from specctl.bench.figures import Samples, run_figures, samples_of
from specctl.bench.judged import is_wide
from specctl.bench.loads import Load
from specctl.bench.order import round_order
from specctl.bench.outputs import greedy_outputs
from specctl.bench.plan import Measured, Plan
from specctl.bench.prompts import Prompt, load_prompts, numbered, rotated
from specctl.bench.records import RequestRecord
from specctl.bench.results import Run, TableSeen
from specctl.bench.run_load import LoadRun, Span, run_load
from specctl.bench.sender import Endpoint, Live, Sender, Session
from specctl.bench.servers import Server
from specctl.engine_api.owner import owner_name
from specctl.errors import BenchFailed, BenchInputError, SpecctlError

__all__ = ["Experiment", "Progress", "choose_endpoint"]

logger = logging.getLogger(__name__)

LIVE_S = 1.0
WARM_UP_TOKENS = 16
WARM_UP_REQUESTS_MAX = 64
OUTPUT_CONCURRENCY = 8
OUTPUT_TOKENS_MAX = 64


class Progress(Protocol):
    def begin(self, runs: int) -> None:
        """How many runs there will be."""

    def live(self, title: str, tokens_per_s: float | None) -> None:
        """What runs now, about once a second."""

    def ended(self, run: Run) -> None: ...


class Experiment:
    """``folder``: logs of daemons are written there."""

    def __init__(self, plan: Plan, servers: Sequence[Server], progress: Progress, folder: Path) -> None:
        self._plan, self._servers, self._progress, self._folder = plan, servers, progress, folder
        self._prompts = {load.prompts: load_prompts(load.prompts) for load in plan.loads}
        self._numbers = itertools.count(1)
        self._began_s = time.monotonic()
        self._rounds = plan.rounds
        """That there will be, as far as it is known."""
        self._slices = plan.rounds * len(plan.arms)
        self.measured = Measured()
        if plan.prompts_once:
            self._check_enough_prompts()

    async def run(self) -> Measured:
        """Ctrl-C after the first round ends it early; the rounds that are complete count.

        Raises BenchFailed where an arm measured nothing. Tables are put back in any case.
        """
        plan = self._plan
        async with Session(plan.api_key) as session, self._borrowed() as tables:
            self._session = session
            self._tell_runs()
            try:
                if plan.warm_up:
                    await self._warm_up(tables)
                while self.measured.rounds < self._rounds or self._adds_rounds():
                    number = self.measured.rounds
                    for place, arm in enumerate(round_order(plan.arms, number)):
                        await self._turn(arm, number, place, tables)
                    self.measured.rounds = number + 1
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self.measured.rounds or task is None:
                    raise
                task.uncancel()
                self._cut_short()
        return self.measured

    def _adds_rounds(self) -> bool:
        """As many again, where an interval is still wide."""
        plan = self._plan
        if self._rounds >= plan.most_rounds or not is_wide(plan, self.measured.runs):
            return False
        self._rounds = min(self._rounds + plan.rounds, plan.most_rounds)
        logger.info("an interval is wider than 5 %% to each side: up to %d rounds", self._rounds)
        self._tell_runs()
        return True

    def _tell_runs(self) -> None:
        self._progress.begin(self._rounds * len(self._plan.arms) * len(self._plan.loads))

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[dict[int, BorrowedTable]]:
        """The tables of the servers whose arms change them."""
        wanted = {arm.server for arm in self._plan.arms if arm.kind is not ArmKind.AS_IS}
        tables: dict[int, BorrowedTable] = {}
        try:
            for i in sorted(wanted):
                capabilities = self._servers[i].capabilities
                assert capabilities is not None
                table = BorrowedTable(self._servers[i].client, capabilities, owner_name("bench"))
                await table.find()
                tables[i] = table
            yield tables
        finally:
            for table in tables.values():
                try:
                    await asyncio.shield(table.put_back())
                except SpecctlError as error:
                    # What was measured is not lost by it.
                    self.measured.warnings.append(str(error))
                    logger.error("%s", error)

    async def _warm_up(self, tables: Mapping[int, BorrowedTable]) -> None:
        """Every arm but a daemon's runs a few requests of every load: graphs, compilers and caches of the
        first requests are no arm's."""
        for arm in self._plan.arms:
            if arm.kind is ArmKind.AUTOTUNE:
                continue
            self._progress.live(f"warm-up: {arm.name}", None)
            await self._put(arm, tables)
            for load in self._plan.loads:
                count = min(load.concurrency or 4, WARM_UP_REQUESTS_MAX)
                short = load.model_copy(
                    update={"max_tokens": min(load.max_tokens, WARM_UP_TOKENS), "concurrency": count}
                    | {"rate_per_s": None, "trace": None}
                )
                prompts = self._numbered(rotated(self._prompts[load.prompts], 0, 1))
                span = Span(requests=2 * count)
                run = await run_load(self._sender(arm, short), short, prompts, span, Live(), seed=0)
                _check_answers(arm, load, run)

    async def _turn(self, arm: Arm, number: int, place: int, tables: Mapping[int, BorrowedTable]) -> None:
        server = self._servers[arm.server]
        await self._put(arm, tables)
        if arm.kind is not ArmKind.AUTOTUNE:
            await self._loads(arm, number, place)
            if arm.server in tables:
                await tables[arm.server].check()
            return
        assert arm.policy is not None
        watch, began_s = TableWatch(server.client), time.monotonic()
        daemon = autotune(server.url, server.client, arm.policy, self._folder, self._plan.token_file)
        async with daemon:
            watching = asyncio.create_task(watch.run())
            try:
                await self._loads(arm, number, place)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        self.measured.tables += [
            TableSeen(round=number, at_s=max(when_s - began_s, 0.0), table=words, reason=reason)
            for when_s, words, reason in watch.tables
        ]

    async def _put(self, arm: Arm, tables: Mapping[int, BorrowedTable]) -> None:
        if arm.kind is ArmKind.SETTING:
            assert arm.setting is not None
            await tables[arm.server].hold(arm.setting)
        elif arm.server in tables:
            await tables[arm.server].put_back()

    async def _loads(self, arm: Arm, number: int, place: int) -> None:
        for load in self._plan.loads:
            await self._load(arm, load, number, place)
        if self._plan.outputs and arm.name not in self.measured.outputs:
            self._progress.live(f"outputs: {arm.name}", None)
            self.measured.outputs[arm.name] = await self._outputs(arm)

    async def _load(self, arm: Arm, load: Load, number: int, place: int) -> None:
        server, live = self._servers[arm.server], Live()
        before = await read_counters(server.client, server.capabilities)
        title = f"round {number + 1}/{self._rounds}, {arm.name}: {load.title}"
        talking = asyncio.create_task(self._talk(title, live))
        try:
            run = await run_load(
                self._sender(arm, load),
                load,
                self._numbered(self._slice(load, number, place)),
                self._plan.span,
                live,
                seed=self._plan.seed + number,
            )
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
        _check_answers(arm, load, run)
        acceptance = acceptance_between(before, await read_counters(server.client, server.capabilities))
        figures = run_figures(
            arm.name, load, run, number=number, place=place, began_s=self._began_s, acceptance=acceptance
        )
        key = (arm.name, load.title)
        self.measured.runs.append(figures)
        self.measured.samples.setdefault(key, Samples()).add(samples_of(run.records))
        self.measured.records[key] = run
        self._progress.ended(figures)

    async def _talk(self, title: str, live: Live) -> None:
        before = 0.0
        while True:
            self._progress.live(title, max(live.tokens_so_far - before, 0.0) / LIVE_S)
            before = live.tokens_so_far
            await asyncio.sleep(LIVE_S)

    def _sender(self, arm: Arm, load: Load) -> Sender:
        server, plan = self._servers[arm.server], self._plan
        return Sender(
            self._session,
            server.url,
            server.model,
            plan.endpoint,
            load.max_tokens,
            plan.sampling,
            plan.ignore_eos,
        )

    async def _outputs(self, arm: Arm) -> dict[str, RequestRecord]:
        """The same prompts for every arm, some of each load."""
        found: dict[str, RequestRecord] = {}
        loads = {load.prompts: load for load in self._plan.loads}
        share = -(-self._plan.outputs // len(loads))
        for name, load in loads.items():
            short = load.model_copy(update={"max_tokens": min(load.max_tokens, OUTPUT_TOKENS_MAX)})
            chosen = [
                prompt.model_copy(update={"id": f"{name}/{prompt.id}"})
                for prompt in itertools.islice(dict.fromkeys(self._prompts[name]), share)
            ]
            found |= await greedy_outputs(self._sender(arm, short), chosen, OUTPUT_CONCURRENCY)
        return found

    def _slice(self, load: Load, number: int, place: int) -> Iterator[Prompt]:
        """The same prompts for all arms of a round, or with ``prompts_once`` some of this run alone."""
        prompts = self._prompts[load.prompts]
        if not self._plan.prompts_once:
            return rotated(prompts, number, self._plan.rounds)
        # Every so many: kinds that take turns in the file are in each part.
        return itertools.cycle(prompts[number * len(self._plan.arms) + place :: self._slices])

    def _numbered(self, prompts: Iterator[Prompt]) -> Iterator[Prompt]:
        if not self._plan.numbers_prompts:
            return prompts
        return (numbered(prompt, f"{next(self._numbers):05d}") for prompt in prompts)

    def _check_enough_prompts(self) -> None:
        for name, prompts in self._prompts.items():
            least = self._slices * (self._plan.span.requests or 1)
            if len(prompts) < least:
                raise BenchInputError(
                    f"prompts {name}: {len(prompts)} are too few for each to come once: expected {least} "
                    f"({self._plan.rounds} rounds of {len(self._plan.arms)} arms)"
                )

    def _cut_short(self) -> None:
        """Rounds that are not complete do not count."""
        measured = self.measured
        measured.is_cut_short = True
        measured.runs = [run for run in measured.runs if run.round < measured.rounds]


def _check_answers(arm: Arm, load: Load, run: LoadRun) -> None:
    """Raises BenchFailed where no request got a token."""
    if any(record.arrival_s if load.is_closed else record.is_whole for record in run.records):
        return
    errors = sorted({record.error for record in run.records if record.error})
    words = errors[0] if errors else "no token arrived before the run's time was over (--seconds)"
    raise BenchFailed(f"{arm.name}, {load.title}: no request was answered: {words}")


async def choose_endpoint(session: Session, server: Server) -> Endpoint:
    """chat where the server has a chat template, else completions."""
    sender = Sender(session, server.url, server.model, "chat", 1)
    body = {"model": server.model, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
    with contextlib.suppress(BenchFailed):
        await sender.post("/v1/chat/completions", body)
        return "chat"
    return "completions"
