"""Many requests at once while the table changes many times a second: what a change waits for, and what grows.

    python -m testing.soak [--model FOLDER] --minutes 30

A change waits for the step in progress, so that many changes a second need short steps: without ``--model`` a
model of one layer and random weights is served. Beside the changes a daemon watches it (``--dry-run``). Exit
code 1: a request or a change failed, an output differs from the one without drafts, or memory, descriptors
or log lines grew.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from testing.autotune import autotune
from testing.lossless import SHARED
from testing.random_model import write_small_model
from testing.servers import vllm_server

__all__ = ["Soak", "main"]

MOST = 4
MAX_TOKENS = 200
GROWTH_MAX_MIB = 64
WARM_UP_SHARE = 0.3
"""Of the time: what grows later is a leak."""
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Process:
    """Of a process and all its children."""

    time_s: float
    memory_mib: float
    descriptors: int
    log_bytes: int


@dataclass
class Soak:
    """Everything that was seen. ``changes``: seconds when each was sent and answered; ``steps``: seconds and
    the engine's steps until then, at the beginning and at the end."""

    outputs: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    wrong: list[str] = field(default_factory=list)
    changes: list[tuple[float, float]] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    server: list[Process] = field(default_factory=list)
    daemon: list[Process] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        seconds = sorted(answered - sent for sent, answered in self.changes)
        (began_s, steps_before), (ended_s, steps_after) = self.steps
        step_s = (ended_s - began_s) / (steps_after - steps_before)
        p50_s, p99_s = statistics.median(seconds), seconds[int(0.99 * len(seconds))]
        return {
            "requests": self.requests,
            "changes": len(self.changes),
            "changes_per_s": round(len(self.changes) / (ended_s - began_s), 2),
            "step_mean_s": round(step_s, 4),
            "change_p50_s": round(p50_s, 4),
            "change_p50_steps": round(p50_s / step_s, 2),
            "change_p99_s": round(p99_s, 4),
            "change_p99_steps": round(p99_s / step_s, 2),
            "server": _ends(self.server),
            "daemon": _ends(self.daemon),
            "wrong": self.wrong[:5],
        }

    def grown(self) -> list[str]:
        found = []
        for name, seen in (("server", self.server), ("daemon", self.daemon)):
            warm = seen[int(WARM_UP_SHARE * len(seen)) :]
            if warm[-1].memory_mib - warm[0].memory_mib > GROWTH_MAX_MIB:
                found.append(f"{name}: {warm[0].memory_mib:.0f} -> {warm[-1].memory_mib:.0f} MiB")
            if warm[-1].descriptors > max(one.descriptors for one in seen[: len(seen) - len(warm) + 1]) + 8:
                found.append(f"{name}: {warm[-1].descriptors} descriptors")
        return found


def _ends(seen: list[Process]) -> dict[str, Any]:
    first, last = seen[int(WARM_UP_SHARE * len(seen))], seen[-1]
    per_hour = 3600.0 / max(last.time_s - first.time_s, 1.0)
    return {
        "memory_mib": [round(first.memory_mib), round(last.memory_mib)],
        "descriptors": [first.descriptors, last.descriptors],
        "log_mib_per_hour": round((last.log_bytes - first.log_bytes) * per_hour / 2**20, 2),
    }


def family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="utf-8").split():
                yield from family(int(child))


def measured(pid: int, log: Path) -> Process:
    memory, descriptors = 0.0, 0
    for one in family(pid):
        with suppress(OSError):
            memory += int(Path(f"/proc/{one}/statm").read_text(encoding="utf-8").split()[1]) * _PAGE_MIB
            descriptors += len(os.listdir(f"/proc/{one}/fd"))
    return Process(time.monotonic(), memory, descriptors, log.stat().st_size)


async def _requests(client: httpx.AsyncClient, soak: Soak, prompts: Iterable[str]) -> None:
    """Greedy completions, one after another. Streams would keep the server's front end busy instead."""
    body = {"model": "model", "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    for prompt in prompts:
        try:
            answer = await client.post("/v1/completions", json={**body, "prompt": prompt})
            answer.raise_for_status()
        except httpx.HTTPError as error:
            soak.wrong.append(f"a request failed: {error!r}")
            continue
        text = answer.json()["choices"][0]["text"]
        soak.requests += 1
        if soak.outputs.setdefault(prompt, text) != text:
            soak.wrong.append(f"another output of {prompt!r}")


async def _steps(client: httpx.AsyncClient) -> tuple[float, int]:
    cells = (await client.get("/specctl/v1/telemetry")).json()["cells"]
    return time.monotonic(), sum(cell["steps"] for cell in cells)


async def _change(client: httpx.AsyncClient, soak: Soak, per_s: float) -> None:
    """One after another, as each names the version that it changes."""
    version = (await client.get("/specctl/v1/table")).json()["version"]
    next_s = time.monotonic()
    for number in itertools.count():
        row = {"decode_batch_from": 1, "num_speculative_tokens": number % (MOST + 1)}
        change = {"base_version": version, "rows": [row], "owner": "soak", "reason": f"{number}"}
        sent_s = time.monotonic()
        answer = await client.put("/specctl/v1/table", json=change)
        if answer.status_code != 200:
            soak.wrong.append(f"a change was refused: {answer.text[:200]}")
            version = (await client.get("/specctl/v1/table")).json()["version"]
            continue
        soak.changes.append((sent_s, time.monotonic()))
        version = answer.json()["version"]
        next_s = max(next_s + 1.0 / per_s, time.monotonic() - 0.5)
        await asyncio.sleep(max(next_s - time.monotonic(), 0.0))


async def run(url: str, soak: Soak, given: argparse.Namespace, measure: Any) -> None:
    prompts = [f"Question {number}: item_0 = load('a')\nitem_1 =" for number in range(given.requests)]
    limits = httpx.Limits(max_connections=given.requests + 8)
    async with (
        httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client,
        httpx.AsyncClient(base_url=url, timeout=60) as control,
    ):
        table = (await control.get("/specctl/v1/table")).json()
        row = {"decode_batch_from": 1, "num_speculative_tokens": 0}
        change = {"base_version": table["version"], "rows": [row], "owner": "soak"}
        (await control.put("/specctl/v1/table", json=change)).raise_for_status()
        # The reference, in the same batches.
        await asyncio.gather(*(_requests(client, soak, [prompt]) for prompt in prompts))
        soak.steps.append(await _steps(control))
        jobs = [asyncio.create_task(_change(control, soak, given.changes_per_s))]
        jobs += [asyncio.create_task(_requests(client, soak, itertools.repeat(prompt))) for prompt in prompts]
        ends_s = time.monotonic() + 60.0 * given.minutes
        while time.monotonic() < ends_s:
            done, _ = await asyncio.wait(jobs, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                job.result()
            measure()
        soak.steps.append(await _steps(control))
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--model", type=Path)
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--requests", type=int, default=64)
    options.add_argument("--changes-per-s", type=float, default=20.0)
    given = options.parse_args()
    # What was started is stopped, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder, soak = Path(tempfile.mkdtemp(prefix="specctl-soak-")), Soak()
    config = {"method": "specctl_suffix", "num_speculative_tokens": MOST, "use_global": False}
    model = given.model or write_small_model(SHARED / "models" / "reference-target", folder / "model")
    more = ["--max-num-seqs", str(given.requests), "--max-model-len", "512", "--disable-uvicorn-access-log"]
    with (
        vllm_server(model, folder / "server.log", config, more) as server,
        autotune(server.url, folder, more=["--dry-run"]) as daemon,
    ):

        def measure() -> None:
            soak.server.append(measured(server.process.pid, server.log))
            soak.daemon.append(measured(daemon.pid, folder / "autotune.log"))

        measure()
        asyncio.run(run(server.url, soak, given, measure))
    print(json.dumps(soak.figures(), indent=2))
    grown = soak.grown()
    print(*grown, sep="\n")
    return 1 if grown or soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
