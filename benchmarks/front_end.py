"""``specctl autotune`` against every constant where the HTTP server is slower than the engine. Simulated.

    python -m benchmarks.front_end [--output FILE]

Closed loops of SECONDS on the costs of an H200. The front end takes PIECES_US for what one request emitted in
one step, and delivers one after the other.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from pathlib import Path
from typing import Any

from specctl.policy.loader import find_policy, load_policy
from specctl.simulate.arms import Static
from specctl.simulate.closed_loop import ClosedLoad
from specctl.simulate.compare import ArmResult, quiet_daemon, simulate
from specctl.simulate.daemon import Autotune
from specctl.simulate.engine_profile import load_profile
from specctl.simulate.files import find_file
from specctl.simulate.perturbation import Perturbation
from specctl.simulate.shapes import one_class
from testing.provenance import write_report

SECONDS = 60.0
PIECES_US = 80, 120, 200, 300
REQUESTS = 128, 256
ACCEPTANCE = 0.1, 0.35, 0.6
CONSTANTS = 0, 1, 2, 3, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    cells = [_cell(*each) for each in itertools.product(PIECES_US, REQUESTS, ACCEPTANCE)]
    by_piece = {str(us): _summary([cell for cell in cells if cell["piece_us"] == us]) for us in PIECES_US}
    report = {"seconds": SECONDS, "summary": _summary(cells), "by microseconds of a piece": by_piece}
    write_report({**report, "cells": cells}, output)


def _cell(piece_us: int, requests: int, acceptance: float) -> dict[str, Any]:
    def run(arm: Static | Autotune) -> ArmResult:
        scenario = one_class("made", [(0.0, acceptance)])
        load, behind = ClosedLoad.constant(requests, SECONDS), Perturbation(front_end_s=piece_us * 1e-6)
        with quiet_daemon():
            return simulate(load, machine, scenario, arm, seed=0, perturbation=behind)

    machine = load_profile(find_file("h200-llama8b-vllm032", "profiles"))
    constants = {number: run(Static(number)).tokens_per_s for number in CONSTANTS}
    ours = run(Autotune("autotune", load_policy(find_policy("balanced"))))
    best = max(constants, key=constants.__getitem__)
    return {
        "piece_us": piece_us,
        "requests": requests,
        "acceptance": acceptance,
        "tokens_per_s": {**{str(number): round(rate) for number, rate in constants.items()},
                         "autotune": round(ours.tokens_per_s)},
        "best_constant": best,
        "to_best_constant": round(ours.tokens_per_s / constants[best], 4),
        "to_off": round(ours.tokens_per_s / constants[0], 4),
        "switches_per_minute": round(ours.switches_per_minute, 2),
    }  # fmt: skip


def _summary(cells: list[dict[str, Any]]) -> dict[str, float]:
    ratios = [cell["to_best_constant"] for cell in cells]
    return {
        "to_best_constant_mean": round(statistics.fmean(ratios), 4),
        "to_best_constant_least": min(ratios),
        "to_off_least": min(cell["to_off"] for cell in cells),
        "switches_per_minute": round(statistics.fmean(cell["switches_per_minute"] for cell in cells), 2),
    }


if __name__ == "__main__":
    main()
