"""``specctl autotune`` against every prepared setting of a real SGLang server with EAGLE-3, trees included.

    python -m benchmarks.trees --models FOLDER [--requests 1,4,8] [--rounds N] [--seconds S] [--on-gpu]
        [--output FILE]

Stock EAGLE3 on this machine's CPU with the reference target and head (``make reference-models``), by one call
of ``specctl bench``. In the arm ``autotune`` a fresh daemon starts from the server's own setting. Beside the
whole run stands what came after its first SEARCH_S seconds, of every arm alike. On a GPU the folder may hold
wider models under the same names.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.gpu.device import device_provenance
from benchmarks.phases import OFF, OURS, against
from specctl.bench.results import BenchResult
from specctl.contract.setting import Setting
from testing.bench import options_of, specctl_bench
from testing.provenance import write_report
from testing.servers import sglang_server

SEARCH_S = 10
CANDIDATES = [0, 2, 4]
START = (
    "--speculative-num-steps",
    "4",
    "--speculative-eagle-topk",
    "3",
    "--speculative-num-draft-tokens",
    "8",
)
OUTPUT_TOKENS = "48-144"
"""Of one length all answers without drafts would end in one step, and the next prompts be read together."""
ON_GPU = (
    *("--dtype", "bfloat16", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
    *("--attention-backend", "triton", "--disable-prefill-cuda-graph"),
    *("--max-running-requests", "32", "--max-total-tokens", "65536"),
)


def main() -> int:
    options = options_of(__doc__, seconds=20.0, flags=[("--on-gpu", "bf16, with CUDA graphs")])
    head = ("--speculative-draft-model-path", str(options.models / "reference-eagle3"))
    environment = {"SPECCTL_SGLANG_OPTIONS": json.dumps({"candidates": CANDIDATES})}
    words = [*head, *START]
    module = "specctl_sglang.cpu_serve"
    if options.on_gpu:
        words, module = [*words, *ON_GPU], "sglang.launch_server"
    else:
        environment["SPECCTL_SGLANG_CPU_OVERLAP"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder, target = Path(name), options.models / "reference-target"
        log = folder / "server.log"
        with sglang_server(target, log, "EAGLE3", words, environment, module) as server:
            capabilities = httpx.get(f"{server.url}/specctl/v1/capabilities").raise_for_status().json()
            arms = [arm_of(Setting.model_validate(one)) for one in capabilities["settings"]]
            load = round(os.getloadavg()[0], 2)
            _, result = specctl_bench([server.url, *_arguments(options, arms)], folder)
    report = {
        "seconds of a run": options.seconds,
        "load of the machine at the start": load,
        **summary(result),
    }
    write_report(report, options.output, device_provenance())
    return 0


def arm_of(setting: Setting) -> str:
    """As ``specctl bench`` takes it."""
    if not setting.num_speculative_tokens:
        return OFF
    if setting.tree_topk == 1:
        return str(setting.num_speculative_tokens)
    return f"{setting.num_speculative_tokens}:{setting.tree_topk}:{setting.width_tokens}"


def _arguments(options: argparse.Namespace, arms: Sequence[str]) -> list[str]:
    words = ["--endpoint", "completions", "--ignore-eos", "--outputs", "0"]
    for arm in (*arms, OURS):
        words += ["--arm", arm]
    for requests in options.requests.split(","):
        load = f"copying+chat name={requests}-at-once concurrency={requests} output={OUTPUT_TOKENS}"
        words += ["--load", load]
    return [*words, "--rounds", str(options.rounds), "--seconds", str(options.seconds)]


def summary(result: BenchResult) -> dict[str, Any]:
    """By load: tokens/s of all arms, and autotune's over the best prepared setting's; whole, and once the
    search is over where the runs are longer."""
    parts = {"whole": 0}
    if all(len(run.timeline) > SEARCH_S + 1 for run in result.runs):
        parts[f"after {SEARCH_S} s"] = SEARCH_S
    return {
        load.title: {name: against(_speeds(result, load.title, from_s)) for name, from_s in parts.items()}
        for load in result.loads
    }


def _speeds(result: BenchResult, load: str, from_s: int) -> list[dict[str, float]]:
    """Of every round, by arm."""
    rounds: list[dict[str, float]] = [{} for _ in range(result.rounds)]
    for run in result.runs:
        # The last second is not a whole one.
        seconds = run.timeline[from_s:-1]
        if run.load == load and run.round < result.rounds:
            rounds[run.round][run.arm] = statistics.fmean(seconds) if seconds else run.tokens_per_s
    return rounds


if __name__ == "__main__":
    sys.exit(main())
