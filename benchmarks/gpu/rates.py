"""Time per output token by requests per second: no speculation, constant numbers of drafts, ``autotune``.

    python -m benchmarks.gpu.rates --model MODEL --head HEAD --output FILE

One call of ``specctl bench`` on two servers of MODEL on one GPU, one with HEAD as vLLM's eagle3 under the
table, and one that never speculates; each takes half of its memory. Requests arrive at random (Poisson), at
the same times for every arm. The daemon stays through all rates of a round, its search included. The chart is
in --folder. ``--urls`` measures two servers that run already.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.serving import compared_pair, pair_options, write
from benchmarks.phases import OURS
from specctl.bench.results import BenchResult
from testing.provenance import pairwise_ratios, summary


def figures(result: BenchResult) -> dict[str, Any]:
    """By rate: ms per output token of each arm, round by round, and the best of the others over autotune's
    (1: as fast)."""
    rates: dict[str, Any] = {}
    for load in result.loads:
        ms: dict[str, list[float]] = {}
        for run in result.runs:
            if run.load == load.title and run.tpot is not None:
                ms.setdefault(run.arm, []).append(1e3 * run.tpot.mean_s)
        row: dict[str, Any] = {"ms per token": {arm: summary(values) for arm, values in ms.items()}}
        others = {arm: median(values) for arm, values in ms.items() if not arm.startswith(OURS)}
        ours = next((values for arm, values in ms.items() if arm.startswith(OURS)), None)
        if ours and others:
            best = min(others, key=others.__getitem__)
            row |= {"best": best, "best / autotune": summary(pairwise_ratios(ms[best], ours))}
        rates[f"{load.rate_per_s:g}"] = row
    return {"rates": rates}


def main() -> int:
    parser = pair_options(__doc__, "rates")
    parser.add_argument("--head", type=Path, help="an EAGLE-3 head of MODEL; not needed with --urls")
    parser.add_argument("--rates", type=float, nargs="*", default=[1, 2, 4, 8, 16, 32], help="requests/s")
    parser.add_argument("--constants", type=int, nargs="*", default=[3], help="numbers of drafts")
    parser.add_argument("--rate-s", type=float, default=20.0, help="of each rate and arm")
    options = parser.parse_args()
    words = ["--prompts", "code+chat"]
    for arm in (*options.constants, f"{OURS}:{options.policy}"):
        words += ["--arm", str(arm)]
    words += ["--rate", ",".join(f"{rate:g}" for rate in options.rates)]
    words += ["--rounds", str(options.rounds), "--seconds", str(options.rate_s)]
    words += ["--output-tokens", str(options.max_tokens)]
    config = {"method": "eagle3", "model": str(options.head), "specctl": {}}
    config["num_speculative_tokens"] = max(options.constants)
    write(options.output, figures(compared_pair(options, config, words)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
