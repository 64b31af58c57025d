"""How soon the daemon follows a phase change: text that copies nothing and text that copies much take turns.

    python -m benchmarks.reaction [--changes 10]

Four requests at a time on a real server with specctl_suffix, one ``specctl autotune`` that has been running
since before the first phase. A reaction is the time from the moment when all four decode to the first table
that the daemon chose for it on the right side; the first phase does not count. A phase
lasts until the daemon has settled on its side. The text that copies nothing continues random words, never the
same twice, with a penalty on repeats.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

from benchmarks.autotune import autotune
from benchmarks.choose_copying import listed, load_prompts
from benchmarks.load import LoadResult, run_load
from benchmarks.lossless import put_table
from benchmarks.provenance import ROOT, provenance, summary
from benchmarks.run_cpu import CACHE, CONFIGS, TOKENS, entropy_prompts
from benchmarks.server import vllm_server

# A small model loops when it decodes greedily, whatever the prompt; a penalty on repeats keeps it from that.
BODY: dict[str, dict[str, Any]] = {
    "copying": {"max_tokens": 96},
    "random words": {"max_tokens": 48, "repetition_penalty": 1.6},
}
WORDS = 24
# Full drafts whatever their probability: short ones cost next to nothing here, and then 8 suit any text.
CONFIG = {**CONFIGS["specctl"], "min_token_prob": 0.0, "max_spec_factor": 16.0}
CONCURRENCY = 4
SETTLED_S = 4.0
PHASE_MAX_S = 40.0


@dataclass(frozen=True)
class Phase:
    kind: str
    start_s: float
    """time.time() when all of its first requests had their first token."""
    before: int
    """num_speculative_tokens in force when it started."""
    is_settled: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--changes", type=int, default=10)
    parser.add_argument("--model", type=Path, default=CACHE / "models" / "gemma3-270m")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "cpu-reaction.json")
    arguments = parser.parse_args()
    source = provenance()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with vllm_server(arguments.model, folder / "server.log", CONFIG) as server:
            phases = asyncio.run(_phases(server.url, arguments.changes, folder))
        lines = (folder / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    followed = follow(phases, [json.loads(line) for line in lines])
    figures = {"reaction_s": summary([p["reaction_s"] for p in followed if p["reaction_s"] is not None])}
    report = {"provenance": source, "figures": figures, "phases": followed}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for phase in followed:
        print(f"bench: {phase}")
    print(f"bench: {figures}")
    return 0


async def _phases(url: str, changes: int, folder: Path) -> list[Phase]:
    prompts = {"random words": random_words(), "copying": cycle(load_prompts(listed()))}
    phases = []
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await put_table(client, 0)
        with autotune(url, folder):
            for i in range(changes + 1):
                kind = "copying" if i % 2 else "random words"
                phases.append(await _phase(client, kind, prompts[kind]))
                print(f"bench: {phases[-1]}", flush=True)
    return phases


async def _phase(client: httpx.AsyncClient, kind: str, prompts: Iterator[str]) -> Phase:
    """Runs until the setting has been on the side that this text asks for, for SETTLED_S."""
    load = LoadResult(time.monotonic())
    before = await _in_force(client)
    running = asyncio.create_task(
        run_load(client, "model", prompts, concurrency=CONCURRENCY, result=load, **BODY[kind])
    )
    while await _get(client, "telemetry", "decoding") < CONCURRENCY or not load.arrivals:
        await asyncio.sleep(0.05)
    started_s = time.time()
    right_since_s = None
    while time.time() < started_s + PHASE_MAX_S:
        await asyncio.sleep(0.1)
        right_since_s = (right_since_s or time.time()) if _is_right(kind, await _in_force(client)) else None
        if right_since_s is not None and time.time() - right_since_s > SETTLED_S:
            break
    running.cancel()
    return Phase(kind, started_s, before, right_since_s is not None)


def _is_right(kind: str, num_speculative_tokens: int) -> bool:
    return num_speculative_tokens >= TOKENS // 2 if kind == "copying" else num_speculative_tokens <= 1


async def _in_force(client: httpx.AsyncClient) -> int:
    rows = await _get(client, "table", "rows")
    tokens: int = next(
        r["num_speculative_tokens"] for r in reversed(rows) if r["decode_batch_from"] <= CONCURRENCY
    )
    return tokens


async def _get(client: httpx.AsyncClient, route: str, key: str) -> Any:
    answer = await client.get(f"/specctl/v1/{route}")
    answer.raise_for_status()
    return answer.json()[key]


def random_words() -> Iterator[str]:
    """Prompts without end, of words from the demo's prompts in random order."""
    words = sorted({word for prompt in entropy_prompts() for word in prompt.split()})
    generator = random.Random(0)
    while True:
        yield " ".join(generator.sample(words, WORDS))


def follow(phases: Sequence[Phase], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the daemon did in each phase but the first. reaction_s None: none was needed, or none came."""
    changes = [
        (datetime.fromisoformat(r["when"]).timestamp(), _drafts(r["from"]), _drafts(r["to"]), r["reason"])
        for r in records
        if r["event"] == "change" and _drafts(r["from"]) != _drafts(r["to"])
    ]
    followed = []
    for phase, later in zip(phases[1:], [*phases[2:], None], strict=True):
        inside = [c for c in changes if phase.start_s <= c[0] and (later is None or c[0] < later.start_s)]
        answers = [at - phase.start_s for at, _, new, _ in inside if _is_right(phase.kind, new)]
        was_wrong = not _is_right(phase.kind, phase.before)
        followed.append(
            {
                "kind": phase.kind,
                "in force before": phase.before,
                "reaction_s": round(answers[0], 2) if answers and was_wrong else None,
                "changes": [
                    f"+{at - phase.start_s:.1f} s {old} -> {new} {why}" for at, old, new, why in inside
                ],
            }
        )
    return followed


def _drafts(settings: dict[str, Any]) -> int:
    """Drafted tokens at CONCURRENCY requests."""
    for batches, setting in settings.items():
        first, _, last = batches.partition("-")
        if int(first) <= CONCURRENCY <= int(last or first):
            return int(setting["num_speculative_tokens"])
    raise ValueError(f"no bucket of {CONCURRENCY} requests in {sorted(settings)}")


if __name__ == "__main__":
    raise SystemExit(main())
