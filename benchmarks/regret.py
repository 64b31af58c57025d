"""How far the controller stays behind a clairvoyant, simulated: traces x load x acceptance scenarios.

Every trace of the data folder (SPECCTL_SHARED) is scaled so that its arrivals ask for 20, 60, 100 and 140 %
of what the server does without speculation, measured by giving it the whole trace at once. Run from the root:
python -m benchmarks.regret [--made] [--quick] [--policy NAME] [--from SHARE] [--requests N] [--output FILE]
``--made``: loads that mostly decode, from a seed (``made_traces``), in the place of the folder's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.made_traces import made_traces
from benchmarks.provenance import ROOT, provenance
from specctl.engine_profile import load_profile
from specctl.policy.loader import find_policy, load_policy
from specctl.simulate.arms import Arm, Static, arms_without_daemon
from specctl.simulate.compare import Comparison, capacity_s, compare
from specctl.simulate.daemon import Autotune
from specctl.simulate.engine import fitting
from specctl.simulate.files import find_file
from specctl.simulate.scenario import load_scenario
from specctl.simulate.trace import Trace, load_trace

LOADS = (0.2, 0.6, 1.0, 1.4)
SCENARIOS = ("steady", "drifting", "phase-changing")
PROFILE = "h200-llama8b-vllm032"
MADE_REQUESTS = 1200
QUICK_REQUESTS, QUICK_LOADS = 400, (0.6, 1.4)
SHARED = Path(os.environ.get("SPECCTL_SHARED", ROOT.parent / "shared"))
OURS = "autotune"


def main() -> int:
    options = _options()
    traces = made_traces(options.requests or MADE_REQUESTS) if options.made else _public_traces(options)
    if not traces:
        print("no traces: set SPECCTL_SHARED to the folder that holds data/traces", file=sys.stderr)
        return 1
    started = time.perf_counter()
    cells = list(_cells(traces, options))
    told = {
        "provenance": provenance(),
        "load": {
            "traces": list(traces),
            "shares of the capacity without speculation": _loads(options),
            "requests of each": options.requests or "all",
            "from": options.begin,
            "engine profile": Path(options.profile).stem,
            "the daemon begins with the profile": options.told,
            "seed": options.seed,
        },
        "policy": options.policy,
        "wall_s": round(time.perf_counter() - started, 1),
        "summary": summary(cells),
        "cells": cells,
    }
    options.output.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told["summary"], indent=1))
    print(f"{options.output}: {len(cells)} cells, {told['wall_s']} s")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--made", action="store_true", help="loads that mostly decode, from a seed")
    parser.add_argument("--quick", action="store_true", help="fewer requests and loads, for a look")
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--profile", default=PROFILE, help="the machine: a file, or a shipped profile's name")
    parser.add_argument(
        "--told",
        action="store_true",
        help="the daemon begins with the profile (autotune --engine-profile), else it learns all costs",
    )
    parser.add_argument("--requests", type=int, default=None, help="of each trace; default: all")
    parser.add_argument(
        "--from",
        dest="begin",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of each trace, left out before",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "benchmarks" / "results" / "simulated-regret.json"
    )
    options = parser.parse_args()
    if options.quick and options.requests is None:
        options.requests = QUICK_REQUESTS
    return options


def _loads(options: argparse.Namespace) -> tuple[float, ...]:
    return QUICK_LOADS if options.quick else LOADS


def _public_traces(options: argparse.Namespace) -> dict[str, Trace]:
    traces = {
        path.stem: load_trace(path).spread() for path in sorted((SHARED / "data" / "traces").glob("*.csv"))
    }
    return {
        name: trace.since(int(options.begin * len(trace))).first(options.requests or sys.maxsize)
        for name, trace in traces.items()
    }


def _cells(traces: Mapping[str, Trace], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    profile = load_profile(find_file(options.profile, "profiles"))
    policy = load_policy(find_policy(options.policy))
    most = profile.num_speculative_tokens_max
    for trace_name, whole in traces.items():
        trace = fitting(whole, profile)
        for name in SCENARIOS:
            scenario = load_scenario(find_file(name, "scenarios"))
            span_s = capacity_s(trace, profile, scenario, Static(0), seed=options.seed)
            for load in _loads(options):
                arms: list[Arm] = [
                    Autotune(OURS, policy, profile if options.told else None),
                    *arms_without_daemon(most),
                ]
                scaled = at_load(trace, span_s, load)
                compared = compare(scaled, profile, scenario, arms, seed=options.seed)
                yield cell(trace_name, name, load, compared)
                print(_words(trace_name, name, load, compared), file=sys.stderr, flush=True)


def at_load(trace: Trace, capacity_span_s: float, load: float) -> Trace:
    """Arrivals stretched so that the trace takes ``capacity_span_s`` / ``load``."""
    return trace.scaled(float(trace.arrival_s[-1]) * load / capacity_span_s)


def cell(trace: str, scenario: str, load: float, compared: Comparison) -> dict[str, Any]:
    ours = compared.arm(OURS)
    fixed = compared.arm("static 5")
    return {
        "trace": trace,
        "scenario": scenario,
        "load": load,
        "regret_ratio": round(ours.regret_ratio, 5),
        "lost_ratio": round(ours.lost_ratio, 5),
        "tpot_regret_ratio": round(ours.tpot_regret_ratio, 5),
        "to_off": round(ours.to_off, 5),
        "to_best_static": round(ours.to_best_static, 5),
        "to_static_5": round(ours.tokens_per_s / fixed.tokens_per_s, 5),
        "clairvoyant_to_best_static": round(compared.arm("clairvoyant").to_best_static, 5),
        "clairvoyant_to_static_5": round(compared.arm("clairvoyant").tokens_per_s / fixed.tokens_per_s, 5),
        "best_static": compared.best_static,
        "switches_per_minute": round(ours.switches_per_minute, 2),
    }


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """What issue-level targets ask for; ratios of tokens/s."""
    phased = [told for told in cells if told["scenario"] == "phase-changing"]

    def every(key: str, of: list[dict[str, Any]] = cells) -> list[float]:
        return [told[key] for told in of]

    return {
        "regret mean": round(statistics.fmean(every("regret_ratio")), 4),
        "regret worst": max(every("regret_ratio")),
        "lost mean": round(statistics.fmean(every("lost_ratio")), 4),
        "lost worst": max(every("lost_ratio")),
        "to off, worst": min(every("to_off")),
        "to best static, worst": min(every("to_best_static")),
        "switches a minute, worst": max(every("switches_per_minute")),
        "phase-changing, to best static": _spread(every("to_best_static", phased)),
        "phase-changing, to static 5": _spread(every("to_static_5", phased)),
        "phase-changing, clairvoyant to best static": _spread(every("clairvoyant_to_best_static", phased)),
        "phase-changing, clairvoyant to static 5": _spread(every("clairvoyant_to_static_5", phased)),
    }


def _spread(values: list[float]) -> dict[str, float]:
    mean = round(statistics.fmean(values), 4)
    return {"mean": mean, "min": min(values), "max": max(values)}


def _words(trace: str, scenario: str, load: float, compared: Comparison) -> str:
    ours = compared.arm(OURS)
    return (
        f"{trace:26} {scenario:15} {load:4.0%} regret {ours.regret_ratio:+.2%} lost {ours.lost_ratio:.2%} "
        f"x off {ours.to_off:.3f} x {compared.best_static} {ours.to_best_static:.3f} "
        f"switches {ours.switches_per_minute:.1f}/min"
    )


if __name__ == "__main__":
    sys.exit(main())
