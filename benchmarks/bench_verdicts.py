"""How often the verdicts of ``specctl bench`` are right on real servers: equal arms, and one that is slower.

    python -m benchmarks.bench_verdicts --models FOLDER [--benches N] [--equal N] [--output FILE]

Two CPU servers of the reference target with its EAGLE-3 head (``make reference-models``) and 2 drafts. The
second one is slower by a known share: its engine sleeps behind each step. A call of ``specctl bench`` has the
first server as the baseline and as equal arms, and the second one once, under the loads, rounds and seconds
that the command takes where none are named. The file is written after each call.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from specctl.bench.intervals import Outcome
from specctl.bench.results import BenchResult, Comparison
from testing.bench import specctl_bench
from testing.provenance import pairwise_ratios, summary, write_report
from testing.servers import Server, vllm_server

FIRST, EQUAL, SLOWER = "first", "equal", "slower"
SHARE = 0.1
"""Of its tokens per second, which the slower server lacks."""
_SLEEPS = '''
import importlib.util, os, sys, time

class Finder:
    """Engine steps take longer from the import of their loop on."""

    def find_spec(self, name, path=None, target=None):
        if name != "vllm.v1.engine.core":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            step = module.EngineCoreProc._process_engine_step

            def slower(self):
                begun = time.perf_counter()
                ran = step(self)
                if ran:
                    time.sleep((time.perf_counter() - begun) * float(os.environ["SLEEP_OF_STEP"]))
                return ran

            module.EngineCoreProc._process_engine_step = slower

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
'''


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--benches", type=int, default=5)
    parser.add_argument("--equal", type=int, default=2, help="equal arms beside the baseline")
    parser.add_argument("--options", type=json.loads, default=[], help="JSON list: of specctl bench")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    target, head = given.models / "reference-target", given.models / "reference-eagle3"
    config = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 2, "specctl": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(_SLEEPS, encoding="utf-8")
        # A copy of a process that has imported the engine would not import this module.
        environment = {"SPECCTL_FORKED_SERVERS": ""}
        planted = {"PYTHONPATH": str(folder), "SLEEP_OF_STEP": str(SHARE / (1.0 - SHARE))}
        with (
            vllm_server(target, folder / "first.log", config, environment=environment) as first,
            vllm_server(target, folder / "second.log", config, environment=environment | planted) as second,
        ):
            found = []
            for i in range(given.benches):
                found.append(bench(first, second, given.equal, given.options, folder / str(i)))
                write_report(figures(found), given.output)
    return 0


def bench(first: Server, second: Server, equal: int, options: Sequence[str], folder: Path) -> BenchResult:
    targets = [first.url] * (1 + equal) + [second.url]
    arms = (FIRST, *(f"{EQUAL} {i + 1}" for i in range(equal)), SLOWER)
    names = [word for name in arms for word in ("--name", name)]
    return specctl_bench([*targets, *names, "--arm", "table", *options], folder)[1]


def figures(results: Sequence[BenchResult]) -> dict[str, Any]:
    by_load = [one for result in results for one in result.comparisons if one.load is not None]
    over_all = [one for result in results for one in result.comparisons if one.load is None]
    return {
        "planted": f"{SHARE:.0%} fewer tokens/s",
        "benches": len(results),
        "rounds of a bench": summary([result.rounds for result in results]),
        "seconds of a run": summary([run.seconds for result in results for run in result.runs]),
        "verdicts under one load": verdicts(by_load),
        "verdicts over both loads": verdicts(over_all),
        "spread of a run": {load.title: spread(results, load.title) for load in results[0].loads},
    }


def verdicts(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    return {
        f"{kind} arms": {
            "verdicts": dict(Counter(one.outcome for one in of_kind)),
            "right": f"{sum(one.outcome is right for one in of_kind)} of {len(of_kind)}",
            "ratio": summary([one.ratio for one in of_kind]),
        }
        for kind, right in ((EQUAL, Outcome.NO_DIFFERENCE), (SLOWER, Outcome.SLOWER))
        if (of_kind := [one for one in comparisons if one.arm.startswith(kind)])
    }


def spread(results: Sequence[BenchResult], load: str) -> dict[str, Any]:
    """Tokens/s of an arm over those of the first one, round by round, each over its bench's median: the noise
    that verdicts face."""
    ratios: list[float] = []
    for result in results:
        speeds = {
            arm.name: [run.tokens_per_s for run in result.runs if (run.arm, run.load) == (arm.name, load)]
            for arm in result.arms
        }
        first = speeds.pop(result.arms[0].name)
        for other in speeds.values():
            of_rounds = pairwise_ratios(other, first)
            ratios += [ratio / median(of_rounds) for ratio in of_rounds]
    return summary(ratios)


if __name__ == "__main__":
    raise SystemExit(main())
