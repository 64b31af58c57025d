"""``specctl autotune`` against every static setting on a real server, by one call of ``specctl bench``.

    python -m benchmarks.phases vllm|sglang --model FOLDER [--rounds N] [--seconds S] [--output FILE]

One server of specctl's suffix method on this machine's CPU. In the arm ``autotune`` a fresh daemon goes on
from the start table, its search included. A ratio is one round's; a file has the median and the range over
the rounds. With answers of one length, as by default, SGLang at 0 drafts ends all of them in one step and
reads their next prompts together.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specctl.bench.results import BenchResult
from testing.bench import specctl_bench
from testing.provenance import write_report
from testing.servers import suffix_server

MOST = 8
KINDS = {"copying": "copying", "chat": "chat", "mixed": "copying+chat"}
MAX_TOKENS = {"copying": 96, "chat": 24, "mixed": 48}
OFF, OURS = "off", "autotune"
TO_STATIC, TO_OFF, TO_BEST_CONSTANT = 0.97, 0.98, 1.10


def main() -> int:
    options = _options()
    with (
        tempfile.TemporaryDirectory() as name,
        suffix_server(options.engine, options.model, Path(name) / "server.log", MOST) as server,
    ):
        load = round(os.getloadavg()[2], 2)
        _, result = specctl_bench([server.url, *_arguments(options)], Path(name))
    report = {
        "engine": options.engine,
        "model": options.model.name,
        "seconds of a phase": options.seconds,
        "output tokens": {kind: output_tokens(kind, options.spread) for kind in KINDS},
        "load of the machine at the start": load,
        "targets": {"to_best_static": TO_STATIC, "to_off": TO_OFF, "to_best_constant": TO_BEST_CONSTANT},
        **summary(result),
    }
    write_report(report, options.output)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a phase; default: 30")
    parser.add_argument("--phases", default="copying:1,chat:8,mixed:4", help="kind:requests, with commas")
    parser.add_argument("--statics", default="2,4,8", help="numbers of drafts beside off")
    parser.add_argument(
        "--spread", action="store_true", help="answers of half to one and a half times the length"
    )
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def _arguments(options: argparse.Namespace) -> list[str]:
    words = ["--endpoint", "completions", "--ignore-eos"]
    for arm in (OFF, *options.statics.split(","), OURS):
        words += ["--arm", arm]
    for text in options.phases.split(","):
        kind, _, requests = text.partition(":")
        tokens = output_tokens(kind, options.spread)
        words += ["--load", f"{KINDS[kind]} name={text} concurrency={requests} output={tokens}"]
    return [*words, "--rounds", str(options.rounds), "--seconds", str(options.seconds)]


def output_tokens(kind: str, is_spread: bool) -> str:
    """Of an answer, as ``specctl bench`` takes them."""
    usual = MAX_TOKENS[kind]
    return f"{usual // 2}-{3 * usual // 2}" if is_spread else str(usual)


def summary(result: BenchResult, never: str | None = None) -> dict[str, Any]:
    """By phase and over all: tokens/s of the arms, and autotune over the best static setting and over off.

    ``never``: the arm that never enabled speculation, if there is one.
    """
    found: dict[str, Any] = {"phases": {}}
    names = [arm.name for arm in result.arms]
    rounds = range(result.rounds)
    speeds = {(run.round, run.load, run.arm): run.tokens_per_s for run in result.runs}
    phases = [load.title for load in result.loads]
    for phase in phases:
        found["phases"][phase] = against(
            [{name: speeds[i, phase, name] for name in names} for i in rounds], never
        )
    found["all phases"] = against(
        [
            {name: statistics.fmean(speeds[i, phase, name] for phase in phases) for name in names}
            for i in rounds
        ],
        never,
    )
    checks = result.outputs
    found["outputs"] = {
        "identical": sum(one.identical for one in checks),
        "compared": sum(one.compared for one in checks),
    }
    return found


def against(rounds: Sequence[dict[str, float]], never: str | None = None) -> dict[str, Any]:
    """The best static setting is that of the medians, so that no round's luck chooses it."""
    ours = next(name for name in rounds[0] if name.startswith(OURS))
    statics = [name for name in rounds[0] if name not in (ours, never)]
    best = max(statics, key=lambda name: statistics.median(one[name] for one in rounds))
    return {
        "tokens_per_s": {name: _range([one[name] for one in rounds]) for name in rounds[0]},
        "best_static": best,
        "to_best_static": _range([one[ours] / one[best] for one in rounds]),
        "to_off": _range([one[ours] / one[OFF] for one in rounds]),
        **({} if never is None else {"to_never_enabled": _range([one[ours] / one[never] for one in rounds])}),
    }


def _range(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
