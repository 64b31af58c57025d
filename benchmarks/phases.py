"""``specctl autotune`` against every static setting on a real server, phase by phase.

    python -m benchmarks.phases vllm|sglang --model FOLDER [--rounds N] [--seconds S] [--output FILE]

One server of specctl's suffix method on this machine's CPU. Arms take turns in rounds, the order turned round
in every other one. In the arm ``specctl`` a fresh daemon goes on from the most drafts, its search included. A
ratio is one round's; a file has the median and the range over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from demo.arms import ArmRun, run_rounds
from demo.phases import Phase
from demo.result import OFF, OURS, identical_outputs
from testing.load import run_load
from testing.provenance import provenance
from testing.servers import Server, suffix_server

MOST = 8
KINDS = {"copying": ("copying",), "chat": ("high-entropy",), "mixed": ("copying", "high-entropy")}
MAX_TOKENS = {"copying": 96, "chat": 24, "mixed": 48}
TO_STATIC, TO_OFF, TO_BEST_CONSTANT = 0.97, 0.98, 1.10


def main() -> int:
    options = _options()
    phases = [_phase(text) for text in options.phases.split(",")]
    statics = [int(number) for number in options.statics.split(",")]
    with (
        tempfile.TemporaryDirectory() as name,
        suffix_server(options.engine, options.model, Path(name) / "server.log", MOST) as server,
    ):
        rounds = asyncio.run(_rounds(server, options, phases, statics, Path(name)))
    report = {
        "provenance": provenance(),
        "engine": options.engine,
        "model": options.model.name,
        "seconds of a phase": options.seconds,
        "load of the machine at the start": round(os.getloadavg()[2], 2),
        "targets": {"to_best_static": TO_STATIC, "to_off": TO_OFF, "to_best_constant": TO_BEST_CONSTANT},
        **summary(phases, rounds),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a phase; default: 30")
    parser.add_argument("--phases", default="copying:1,chat:8,mixed:4", help="kind:requests, with commas")
    parser.add_argument("--statics", default="2,4,8", help="numbers of drafts beside off")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def _phase(text: str) -> Phase:
    kind, _, requests = text.partition(":")
    return Phase(text, KINDS[kind], concurrency=int(requests), max_tokens=MAX_TOKENS[kind])


async def _rounds(
    server: Server, options: argparse.Namespace, phases: Sequence[Phase], statics: Sequence[int], folder: Path
) -> list[list[ArmRun]]:
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        for phase in phases:
            prompts = phase.prompts()[: phase.concurrency]
            await run_load(client, server.model, prompts, concurrency=phase.concurrency, max_tokens=16)
    arms = {OFF: 0, **{f"static {number}": number for number in statics}, OURS: MOST}

    def ended(run: ArmRun) -> None:
        speeds = ", ".join(f"{load.tokens_per_s:.1f}" for load in run.loads)
        print(f"{run.name}: {speeds} tokens/s", file=sys.stderr, flush=True)

    return await run_rounds(
        arms,
        server,
        OURS,
        rounds=options.rounds,
        policy="balanced",
        seconds=options.seconds,
        folder=folder,
        live=lambda text: None,
        ended=ended,
        phases=phases,
    )


def summary(phases: Sequence[Phase], rounds: Sequence[Sequence[ArmRun]]) -> dict[str, Any]:
    """By phase and over all: tokens/s of the arms, and specctl over the best static setting and over off."""
    found: dict[str, Any] = {"phases": {}}
    names = [run.name for run in rounds[0] if run.name != OURS]
    for i, phase in enumerate(phases):
        speeds = [{run.name: run.loads[i].tokens_per_s for run in runs} for runs in rounds]
        found["phases"][phase.name] = against(names, speeds)
    means = [{run.name: run.tokens_per_s for run in runs} for runs in rounds]
    found["all phases"] = against(names, means)
    identical, compared = identical_outputs(rounds, len(phases))
    found["outputs"] = {"identical": identical, "compared": compared}
    return found


def against(names: Sequence[str], speeds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The best static setting is that of the medians, so that no round's luck chooses it."""
    best = max(names, key=lambda name: statistics.median(one[name] for one in speeds))
    return {
        "tokens_per_s": {name: spread([one[name] for one in speeds]) for name in (*names, OURS)},
        "best_static": best,
        "to_best_static": spread([one[OURS] / one[best] for one in speeds]),
        "to_off": spread([one[OURS] / one[OFF] for one in speeds]),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
