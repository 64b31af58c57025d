"""Many requests at once while the table changes many times a second: what a change waits for, and what grows.

    python -m testing.soak [--model FOLDER] --minutes 30

Beside the changes a daemon watches the server (``--dry-run``). Exit code 1: a request or a change failed, an
output differs from the one without drafts, or memory, descriptors or log lines grew.
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
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from testing.autotune import autotune
from testing.lossless import SHARED
from testing.servers import vllm_server

__all__ = ["Soak", "main"]

MOST = 4
MAX_TOKENS = 64
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
    """Everything that was seen. ``changes``: seconds when each was sent and answered."""

    outputs: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    wrong: list[str] = field(default_factory=list)
    changes: list[tuple[float, float]] = field(default_factory=list)
    arrivals: dict[int, list[float]] = field(default_factory=dict)
    """When each stream got a part: one for each of its steps."""
    server: list[Process] = field(default_factory=list)
    daemon: list[Process] = field(default_factory=list)

    def steps_waited(self, sent_s: float, answered_s: float) -> int:
        """Steps that ended meanwhile, by the stream that saw the most."""
        return max(
            (bisect_left(at, answered_s) - bisect_left(at, sent_s) for at in self.arrivals.values()),
            default=0,
        )

    def figures(self) -> dict[str, Any]:
        seconds = sorted(answered - sent for sent, answered in self.changes)
        waited = [self.steps_waited(*change) for change in self.changes]
        whole_s = self.changes[-1][1] - self.changes[0][0]
        gaps = sorted(
            b - a for at in self.arrivals.values() for a, b in itertools.pairwise(at) if b - a > 1e-3
        )
        return {
            "requests": self.requests,
            "changes": len(self.changes),
            "changes_per_s": round(len(self.changes) / whole_s, 2),
            "change_p50_s": round(statistics.median(seconds), 4),
            "change_p99_s": round(seconds[int(0.99 * len(seconds))], 4),
            "step_p50_s": round(statistics.median(gaps), 4) if gaps else None,
            "step_p99_s": round(gaps[int(0.99 * len(gaps))], 4) if gaps else None,
            "changes_by_steps_ended_meanwhile": {n: waited.count(n) for n in sorted(set(waited))},
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


async def _parts(client: httpx.AsyncClient, prompt: str) -> AsyncIterator[str]:
    """The text of each part of a greedy completion's stream."""
    body = {
        "model": "model",
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield "".join(one["text"] for one in json.loads(line.removeprefix("data: "))["choices"])


async def _requests(client: httpx.AsyncClient, soak: Soak, number: int, prompts: Iterable[str]) -> None:
    for prompt in prompts:
        texts, arrivals = [], soak.arrivals.setdefault(number, [])
        try:
            async for text in _parts(client, prompt):
                arrivals.append(time.monotonic())
                texts.append(text)
        except httpx.HTTPError as error:
            soak.wrong.append(f"a request failed: {error!r}")
            continue
        soak.requests += 1
        if soak.outputs.setdefault(prompt, "".join(texts)) != "".join(texts):
            soak.wrong.append(f"another output of {prompt!r}")


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
        await asyncio.gather(*(_requests(client, soak, i, [p]) for i, p in enumerate(prompts)))
        soak.arrivals.clear()
        jobs = [asyncio.create_task(_change(control, soak, given.changes_per_s))]
        jobs += [
            asyncio.create_task(_requests(client, soak, i, itertools.repeat(p)))
            for i, p in enumerate(prompts)
        ]
        ends_s = time.monotonic() + 60.0 * given.minutes
        while time.monotonic() < ends_s:
            done, _ = await asyncio.wait(jobs, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                job.result()
            measure()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--model", type=Path, default=SHARED / "models" / "reference-target")
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--requests", type=int, default=64)
    options.add_argument("--changes-per-s", type=float, default=20.0)
    given = options.parse_args()
    # What was started is stopped, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder, soak = Path(tempfile.mkdtemp(prefix="specctl-soak-")), Soak()
    config = {"method": "specctl_suffix", "num_speculative_tokens": MOST, "use_global": False}
    more = ["--max-num-seqs", str(given.requests), "--max-model-len", "512", "--disable-uvicorn-access-log"]
    with (
        vllm_server(given.model, folder / "server.log", config, more) as server,
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
