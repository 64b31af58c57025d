"""How far ``specctl autotune`` stays behind a clairvoyant, simulated.

    python -m benchmarks.regret [--only GROUP ...] [--shapes N] [--seeds N] [--output FILE] [...]

Closed loop first, then the same with the truth perturbed, then open loop (public traces where SPECCTL_SHARED
is set, made ones), then loads that nothing was tuned on. Every measure has its mean and its worst cell.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.closed_loop import CLOSED, closed_tasks
from benchmarks.held_out import HELD_OUT, held_out_tasks
from benchmarks.open_loop import OPEN, open_tasks
from benchmarks.regret_cells import OURS, Cell, Task, TaskOptions, run, summary, table
from testing.provenance import ROOT, provenance

PROFILE = "h200-llama8b-vllm032"
REQUESTS = 600
GROUPS = {
    **dict.fromkeys(CLOSED, closed_tasks),
    **dict.fromkeys(OPEN, open_tasks),
    **dict.fromkeys(HELD_OUT, held_out_tasks),
}
USUAL = ("closed loop", "staircase", "all at once", "stretches", *OPEN, *HELD_OUT)
QUICK_SHAPES = 3
MEASURES = {
    "regret_ratio": "tokens/s below the clairvoyant's",
    "tpot_regret_ratio": "mean time per output token above the clairvoyant's",
    "lost_ratio": "share of the tokens of decoding steps that the settings cost, at the batches met",
    "switches_per_minute": "changes of the setting that a running batch felt; samples are none",
    "sampled_cost_ratio": "share of the tokens that sampled steps cost; negative: they gained",
    "back_s": "seconds from when drafting pays again until it is on, where it was off",
    "ahead of the clairvoyant": "cells in which ours or a static setting is ahead, and by how much at most: "
    "so far the clairvoyant is no upper bound",
}
_TARGETS = (
    ("closed loop", "regret_ratio", "mean", 0.012),
    ("closed loop", "regret_ratio", "worst", 0.04),
    ("closed loop", "to_best_static", "worst", 0.97),
    ("closed loop", "back_s", "worst", 2.0),
    ("closed loop", "sampled_cost_ratio", "mean", 0.005),
    ("closed loop", "switches_per_minute", "mean", 2.0),
    ("staircase", "regret_ratio", "mean", 0.04),
    ("all at once", "regret_ratio", "mean", 0.05),
    ("open loop, public traces", "lost_ratio", "mean", 0.031),
    ("open loop, made traces", "lost_ratio", "mean", 0.023),
)
_AT_LEAST = {"to_best_static", "to_off"}


def main() -> int:
    options = _options()
    started = time.perf_counter()
    tasks = _tasks(options)
    begin_until_s = time.time() + options.limit_s
    with ProcessPoolExecutor(options.processes) as pool:
        found = list(pool.map(partial(_run, begin_until_s), tasks))
    cells = [cell for cell in found if cell is not None]
    figures = summary(cells)
    report = {
        "provenance": provenance(),
        "engine profile": Path(options.profile).stem,
        "policy": options.policy,
        "daemon": options.daemon or "specctl autotune",
        "seeds": _task_options(options).seeds,
        "shapes of each group at most": options.shapes,
        "requests of each open-loop trace": _task_options(options).requests,
        "cells left out at the time limit": len(tasks) - len(cells),
        "measures": MEASURES,
        "wall_s": round(time.perf_counter() - started, 1),
        "targets": _against_targets(figures),
        "summary": figures,
        "cells": cells,
    }
    if options.output is not None:
        options.output.write_text(_json(report), encoding="utf-8")
    print(table(figures))
    print(json.dumps(report["targets"], indent=1))
    print(f"{len(cells)} of {len(tasks)} cells, {report['wall_s']} s")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=list(GROUPS), default=USUAL, metavar="GROUP",
        help=f"of {', '.join(GROUPS)}; default: {', '.join(USUAL)}",
    )  # fmt: skip
    parser.add_argument("--shapes", type=int, metavar="N", help="at most so many loads of each group")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SHAPES} loads of each group, one seed")
    parser.add_argument("--seeds", type=int, default=1, help="default: 1")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--profile", default=PROFILE, help="a file, or a shipped profile's name")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each open-loop trace")
    parser.add_argument("--daemon", metavar="MODULE:FUNCTION", help="another daemon than specctl autotune")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--limit-s", type=float, default=float("inf"), help="cells that have not begun by then are left out"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"e.g. {_RESULT.relative_to(ROOT)}")
    options = parser.parse_args()
    if options.quick:
        options.shapes, options.seeds = options.shapes or QUICK_SHAPES, 1
    return options


_RESULT = ROOT / "benchmarks" / "results" / "simulated-regret.json"


def _task_options(options: argparse.Namespace) -> TaskOptions:
    seeds = tuple(range(options.seed, options.seed + options.seeds))
    return TaskOptions(seeds, options.requests, options.policy, options.profile, options.daemon)


def _tasks(options: argparse.Namespace) -> list[Task]:
    tasks: list[Task] = []
    for group in options.only:
        every = GROUPS[group](group, _task_options(options))
        count = min(options.shapes or len(every), len(every))
        tasks += [every[place * len(every) // count] for place in range(count)]
    return tasks


def _run(begin_until_s: float, task: Task) -> Cell | None:
    return run(task) if time.time() < begin_until_s else None


def _against_targets(figures: Cell) -> list[Cell]:
    found = []
    for group, measure, of, target in _TARGETS:
        value = figures.get(group, {}).get(OURS, {}).get(measure, {}).get(of)
        if value is not None:
            is_met = value >= target if measure in _AT_LEAST else value <= target
            found.append(
                {
                    "group": group,
                    "measure": measure,
                    "of": of,
                    "target": target,
                    "value": value,
                    "met": is_met,
                }
            )
    return found


def _json(report: Cell) -> str:
    """One line for each cell."""
    cells = ",\n  ".join(json.dumps(cell) for cell in report["cells"])
    head = json.dumps({**report, "cells": []}, indent=1)
    return head.removesuffix("[]\n}") + f"[\n  {cells}\n ]\n}}\n"


if __name__ == "__main__":
    sys.exit(main())
