"""What telling traffic classes apart is worth while the mix alternates: the daemon with and without them.

    python -m benchmarks.class_mix --output FILE

Requests of one size arrive at random (Poisson); which kind, the scenario says, and how long a phase lasts,
--phases. Each look's estimate of the accepted tokens of a request-step is
compared with what the second after it did, at FIXED_DRAFTS drafts, so that all estimators see the same steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.provenance import provenance
from specctl.engine_profile import EngineProfile, load_profile
from specctl.policy.loader import find_policy, load_policy, parse_policy
from specctl.policy.models import AnyPolicy
from specctl.simulate.arms import Clairvoyant, Static
from specctl.simulate.compare import capacity_s, quiet_daemon, simulate
from specctl.simulate.daemon import Autotune, ClassesTold
from specctl.simulate.engine import SimulatedEngine
from specctl.simulate.files import find_file
from specctl.simulate.scenario import Scenario, load_scenario
from specctl.simulate.trace import Trace

PROFILE, SCENARIO = "h200-llama8b-vllm032", "alternating-mix"
TOLD: tuple[ClassesTold, ...] = get_args(ClassesTold)
PROMPT_TOKENS = 300
REQUEST_STEPS_MIN = 10
FIXED_DRAFTS = 4
FIXED = parse_policy(f"kind: fixed\nnum_speculative_tokens: {FIXED_DRAFTS}", "fixed")
Figures = dict[str, dict[str, float]]


class Predicting(Autotune):
    """Keeps (predicted, measured) accepted tokens of a request-step, one pair for each look that can tell."""

    def start(self, engine: SimulatedEngine) -> None:
        self.pairs: list[tuple[float, float]] = []
        self._before: dict[int, tuple[int, int]] = {}
        super().start(engine)

    def run(self, until_s: float) -> None:
        survival = self.decisions[-1].survival
        super().run(until_s)
        now: dict[int, tuple[int, int]] = {}
        for cell in self.counters.cells():
            steps, accepted = now.get(cell.num_speculative_tokens, (0, 0))
            now[cell.num_speculative_tokens] = steps + cell.request_steps, accepted + cell.accepted_tokens
        for drafts, (steps, accepted) in now.items():
            old_steps, old_accepted = self._before.get(drafts, (0, 0))
            gained = steps - old_steps
            if survival is not None and drafts and gained >= REQUEST_STEPS_MIN:
                measured = (accepted - old_accepted) / gained
                self.pairs.append((survival.accepted_tokens(drafts), measured))
        self._before = now


def arrivals(rate_per_s: float, span_s: float, prompt: int, output: int, seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0 / rate_per_s, max(int(rate_per_s * span_s), 1)))
    size = len(times)
    return Trace(times, np.full(size, prompt), np.full(size, output), {})


def run(trace: Trace, profile: EngineProfile, scenario: Scenario, policy: AnyPolicy, seed: int) -> Figures:
    told: Figures = {}
    daemons = [Autotune(f"classes: {words}", policy, classes=words) for words in TOLD]
    for arm in (*daemons, Static(FIXED_DRAFTS), Clairvoyant()):
        done = simulate(trace, profile, scenario, arm, seed=seed)
        told[done.name] = {
            "lost_ratio": round(done.lost_ratio, 5),
            "tokens_per_s": round(done.tokens_per_s, 1),
            "tpot_mean_ms": round(1e3 * done.tpot_mean_s, 4),
            "switches_per_minute": round(done.switches_per_minute, 2),
            "mean_decode_batch": round(done.mean_decode_batch, 1),
        }
    for words in TOLD:
        watcher = Predicting(f"classes: {words}", FIXED, classes=words)
        simulate(trace, profile, scenario, watcher, seed=seed)
        misses = [predicted - measured for predicted, measured in watcher.pairs]
        drifts = sum(d.survival is not None and d.survival.drifted for d in watcher.decisions)
        told[watcher.name] |= {
            "miss_mean_tokens": round(statistics.fmean(map(abs, misses)), 4),
            "miss_rms_tokens": round(math.sqrt(statistics.fmean(m * m for m in misses)), 4),
            "drifts_per_minute": round(60 * drifts / len(watcher.decisions), 2),
        }
    return told


def cells(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    profile = load_profile(find_file(PROFILE, "profiles"))
    policy = load_policy(find_policy("balanced"))
    shipped = load_scenario(find_file(SCENARIO, "scenarios"))
    grid = itertools.product(options.output_tokens, options.phases, options.loads, range(options.seeds))
    for output_tokens, phase_s, load, seed in grid:
        scenario = shipped.scaled(shipped.mix[1].from_s / phase_s)
        at_once = arrivals(1e6, 1e-3, PROMPT_TOKENS, output_tokens, seed)
        rate = len(at_once) / capacity_s(at_once, profile, scenario, Static(0), seed=seed)
        trace = arrivals(load * rate, options.span_s, PROMPT_TOKENS, output_tokens, seed)
        arms = run(trace, profile, scenario, policy, seed)
        cell = {"output_tokens": output_tokens, "phase_s": phase_s, "load": load, "seed": seed, "arms": arms}
        print(json.dumps(cell), file=sys.stderr, flush=True)
        yield cell


def means(found: list[dict[str, Any]]) -> Figures:
    first: Figures = found[0]["arms"]
    return {
        arm: {key: round(statistics.fmean(cell["arms"][arm][key] for cell in found), 5) for key in figures}
        for arm, figures in first.items()
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Figures]:
    """Means over loads and seeds."""
    by: dict[str, list[dict[str, Any]]] = {}
    for cell in found:
        words = f"{cell['output_tokens']} output tokens, {cell['phase_s']:g} s of a mix"
        by.setdefault(words, []).append(cell)
    return {"all": means(found), **{words: means(part) for words, part in by.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--phases", type=float, nargs="*", default=[2.0, 5.0, 20.0], help="seconds of a mix")
    parser.add_argument(
        "--loads", type=float, nargs="*", default=[0.1, 0.4, 0.8], help="of the capacity, off"
    )
    parser.add_argument("--output-tokens", type=int, nargs="*", default=[200, 1000])
    parser.add_argument("--span-s", type=float, default=120.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with quiet_daemon():
        found = list(cells(options))
    told = {"provenance": provenance(), "options": {k: str(v) for k, v in vars(options).items()}}
    told |= {"summary": summary(found), "cells": found}
    print(json.dumps(told["summary"], indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
