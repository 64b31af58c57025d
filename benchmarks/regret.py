"""How far ``specctl autotune`` stays behind a clairvoyant, simulated.

    python -m benchmarks.regret [--quick] [--closed | --open] [--seeds N] [--output FILE] [...]

Closed loop first (chains and trees, with every perturbation of the truth), then open loop (made traces, and
public ones where SPECCTL_SHARED is set). Every measure has its mean and its worst cell.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.closed_loop import QUICK_PERTURBATIONS, QUICK_SHAPES, closed_tasks
from benchmarks.open_loop import LOADS, open_tasks
from benchmarks.provenance import ROOT, provenance
from benchmarks.regret_cells import Cell, Task, run, summary, table
from specctl.simulate.perturbation import PERTURBATIONS

PROFILE = "h200-llama8b-vllm032"
REQUESTS, QUICK_REQUESTS = 600, 200
MEASURES = {
    "regret_ratio": "tokens/s below the clairvoyant's",
    "tpot_regret_ratio": "mean time per output token above the clairvoyant's",
    "lost_ratio": "share of the tokens of decoding steps that the settings cost, at the batches met",
    "switches_per_minute": "changes of the setting that a running batch felt; samples are none",
    "sampled_cost_ratio": "share of the tokens that sampled steps cost; negative: they gained",
    "back_s": "seconds from when drafting pays again until it is on, where it was off",
    "static ahead of the clairvoyant": "cells, and by how much at most: so far it is no upper bound",
}


def main() -> int:
    options = _options()
    started = time.perf_counter()
    tasks = _tasks(options)
    cells: list[Cell] = []
    with ProcessPoolExecutor(options.processes) as pool:
        for found in pool.map(run, tasks):
            cells += found
    found = summary(cells)
    report = {
        "provenance": provenance(),
        "engine profile": Path(options.profile).stem,
        "policy": options.policy,
        "daemon": options.daemon or "specctl autotune",
        "seeds": _seeds(options),
        "requests of each open-loop trace": _requests(options),
        "measures": MEASURES,
        "wall_s": round(time.perf_counter() - started, 1),
        "summary": found,
        "cells": cells,
    }
    if options.output is not None:
        options.output.write_text(_json(report), encoding="utf-8")
    print(table(found))
    print(f"{len(cells)} cells, {report['wall_s']} s")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="some of everything, one seed")
    parser.add_argument("--closed", action="store_true", help="closed loop only")
    parser.add_argument("--open", action="store_true", help="open loop only")
    parser.add_argument("--seeds", type=int, default=3, help="default: 3")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--profile", default=PROFILE, help="a file, or a shipped profile's name")
    parser.add_argument("--shapes", nargs="*", metavar="TEXT", help="of names that hold one of these")
    parser.add_argument("--perturbations", nargs="*", choices=list(PERTURBATIONS), metavar="NAME")
    parser.add_argument("--requests", type=int, help=f"of each open-loop trace; default: {REQUESTS}")
    parser.add_argument("--daemon", metavar="MODULE:FUNCTION", help="another daemon than specctl autotune")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"e.g. {_RESULT.relative_to(ROOT)}")
    return parser.parse_args()


_RESULT = ROOT / "benchmarks" / "results" / "simulated-regret.json"


def _seeds(options: argparse.Namespace) -> list[int]:
    return list(range(options.seed, options.seed + (1 if options.quick else options.seeds)))


def _requests(options: argparse.Namespace) -> int:
    return int(options.requests or (QUICK_REQUESTS if options.quick else REQUESTS))


def _tasks(options: argparse.Namespace) -> list[Task]:
    seeds = _seeds(options)
    common = options.policy, options.profile, options.daemon
    tasks: list[Task] = []
    if not options.open:
        names = options.shapes or (QUICK_SHAPES if options.quick else ())
        perturbations = options.perturbations or (QUICK_PERTURBATIONS if options.quick else ())
        tasks += closed_tasks(seeds, *common, names, perturbations)
    if not options.closed:
        tasks += open_tasks(seeds, _requests(options), *common, LOADS)
    return tasks


def _json(report: Cell) -> str:
    """One line for each cell."""
    cells = ",\n  ".join(json.dumps(cell) for cell in report["cells"])
    head = json.dumps({**report, "cells": []}, indent=1)
    return head.removesuffix("[]\n}") + f"[\n  {cells}\n ]\n}}\n"


if __name__ == "__main__":
    sys.exit(main())
