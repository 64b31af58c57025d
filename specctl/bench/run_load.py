"""Run one load against one server and keep what each request did."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from specctl.bench.loads import Load, arrivals, with_lengths
from specctl.bench.prompts import Prompt
from specctl.bench.records import RequestRecord
from specctl.bench.sender import Live, Sender

__all__ = ["LoadRun", "Span", "run_load"]

DRAIN_S = 60.0
"""How long an open loop waits for answers after its last arrival was due."""


@dataclass(frozen=True)
class Span:
    """When a run ends: after ``seconds``, or after ``requests`` have ended; whichever is first."""

    seconds: float | None = None
    requests: int | None = None


@dataclass
class LoadRun:
    """Times are seconds of time.monotonic. ``ended_s``: the end of the time that counts."""

    started_s: float
    ended_s: float = 0.0
    records: list[RequestRecord] = field(default_factory=list)


async def run_load(
    sender: Sender, load: Load, prompts: Iterator[Prompt], span: Span, live: Live, *, seed: int
) -> LoadRun:
    """A closed loop cuts off what is in flight when its seconds are over; an open loop lets it end."""
    prompts = with_lengths(prompts, load, seed)
    run = LoadRun(time.monotonic())
    if load.is_closed:
        await _closed(sender, load, prompts, span, live, run)
    else:
        await _open(sender, load, prompts, span, live, run, seed)
    return run


async def _closed(
    sender: Sender, load: Load, prompts: Iterator[Prompt], span: Span, live: Live, run: LoadRun
) -> None:
    left = span.requests

    async def worker() -> None:
        nonlocal left
        while left is None or left > 0:
            left = None if left is None else left - 1
            prompt = next(prompts)
            record = RequestRecord(prompt.id, time.monotonic())
            run.records.append(record)
            await sender.send(prompt, live, record)
            if record.error is not None:
                # A server that refuses everything must not be flooded.
                await asyncio.sleep(0.2)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(span.seconds), asyncio.TaskGroup() as group:
            for _ in range(load.concurrency or 1):
                group.create_task(worker())
    run.ended_s = time.monotonic()


async def _open(
    sender: Sender, load: Load, prompts: Iterator[Prompt], span: Span, live: Live, run: LoadRun, seed: int
) -> None:
    tasks: set[asyncio.Task[None]] = set()
    try:
        for number, (at_s, _, output_tokens) in enumerate(arrivals(load, seed)):
            if number == span.requests or (span.seconds is not None and at_s > span.seconds):
                break
            await asyncio.sleep(max(run.started_s + at_s - time.monotonic(), 0.0))
            prompt = next(prompts)
            if output_tokens is not None:
                prompt = prompt.model_copy(update={"output_tokens": output_tokens})
            record = RequestRecord(prompt.id, time.monotonic())
            run.records.append(record)
            task = asyncio.create_task(sender.send(prompt, live, record))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_S)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    run.ended_s = time.monotonic()
