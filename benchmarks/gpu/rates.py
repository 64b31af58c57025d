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
from statistics import fmean
from typing import Any

from benchmarks.gpu.serving import compared_pair, pair_options, write
from benchmarks.phases import OURS
from specctl.bench.results import BenchResult


def figures(result: BenchResult) -> dict[str, Any]:
    """By rate: ms per output token of each arm, and the best of the others over autotune's (1: as fast)."""
    rates: dict[str, Any] = {}
    for load in result.loads:
        found = [one for one in result.figures if one.load == load.title and one.tpot is not None]
        ms = {one.arm: round(1e3 * one.tpot.mean_s, 3) for one in found if one.tpot is not None}
        row: dict[str, Any] = {"ms per token": ms}
        others = {arm: value for arm, value in ms.items() if not arm.startswith(OURS)}
        ours = [value for arm, value in ms.items() if arm.startswith(OURS)]
        if ours and others:
            best = min(others, key=others.__getitem__)
            row |= {"best": best, "best / autotune": round(others[best] / ours[0], 3)}
        rates[f"{load.rate_per_s:g}"] = row
    ratios = [row["best / autotune"] for row in rates.values() if "best / autotune" in row]
    return {"rates": rates, "best / autotune, mean": round(fmean(ratios), 3) if ratios else None}


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
