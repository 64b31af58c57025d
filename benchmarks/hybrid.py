"""``specctl_hybrid`` against each of its two parts on a real vLLM, by one call of ``specctl bench``.

    python -m benchmarks.hybrid --models FOLDER [--requests 1,4,8] [--rounds N] [--seconds S] [--output FILE]

Three servers on this machine's CPU with the reference target and head (``make reference-models``), loaded in
turn: specctl_suffix, stock eagle3 under a table of specctl, and specctl_hybrid with that head, each at TOKENS
drafts. A ratio is one round's; a file has the median and the range over the rounds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from specctl.bench.results import BenchResult
from testing.bench import options_of, specctl_bench
from testing.provenance import pairwise_ratios, summary, write_report
from testing.servers import vllm_server

TOKENS, MAX_TOKENS = 4, 64
KINDS = ("copying", "chat", "copying+chat")
OURS = "hybrid"


def main() -> int:
    options = options_of(__doc__, seconds=10.0)
    head = {"model": str(options.models / "reference-eagle3"), "num_speculative_tokens": TOKENS}
    configs: dict[str, dict[str, Any]] = {
        "suffix": {"method": "specctl_suffix", "num_speculative_tokens": TOKENS},
        "eagle3": {"method": "eagle3", **head, "specctl": {}},
        OURS: {"method": "specctl_hybrid", "head": "eagle3", **head},
    }
    target = options.models / "reference-target"
    with ExitStack() as stack, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        servers = [
            stack.enter_context(vllm_server(target, folder / f"{name}.log", config))
            for name, config in configs.items()
        ]
        words = [server.url for server in servers]
        for name in configs:
            words += ["--name", name]
        for requests in options.requests.split(","):
            for kind in KINDS:
                title = f"{kind}-{requests}"
                words += ["--load", f"{kind} name={title} concurrency={requests} output={MAX_TOKENS}"]
        words += ["--arm", str(TOKENS), "--endpoint", "completions", "--ignore-eos", "--outputs", "0"]
        words += ["--rounds", str(options.rounds), "--seconds", str(options.seconds)]
        _, result = specctl_bench(words, folder)
    write_report({"seconds of a run": options.seconds, **compared(result)}, options.output)
    return 0


def compared(result: BenchResult) -> dict[str, Any]:
    """By load: tokens/s of each server, and the hybrid's over that of the better of its parts.

    The better part is that of the medians, so that no round's luck chooses it.
    """
    found: dict[str, Any] = {}
    ours = next(arm.name for arm in result.arms if arm.name.startswith(OURS))
    for load in result.loads:
        speeds: dict[str, list[float]] = {arm.name: [] for arm in result.arms}
        for run in result.runs:
            if run.load == load.title:
                speeds[run.arm].append(run.tokens_per_s)
        parts = [name for name in speeds if name != ours]
        better = max(parts, key=lambda name: statistics.median(speeds[name]))
        found[load.title] = {
            "tokens_per_s": {name: summary(values) for name, values in speeds.items()},
            "better part": better,
            "to the better part": summary(pairwise_ratios(speeds[ours], speeds[better])),
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
