"""Tokens per second of sampled requests with ``verify: specctl`` against ``verify: engine``, in one engine.

    python -m benchmarks.gpu.sampled_end_to_end --model FOLDER --prompts FILE --output FILE

specctl_suffix with 5 drafts, T = 0.8, top-p 0.95, a model of benchmarks.gpu.widen and copying prompts of
benchmarks.gpu.prompts. Which sampler verifies is changed in the worker between two measurements; the arms
take turns, A B then B A, on the same prompts. Finished outputs are not drafted from: the second arm would
know the first one's. Gate: in each measurement only the arm's own sampler has verified, and both keep as many
drafts.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.gpu.device import device_provenance
from benchmarks.gpu.engine_arm import counters
from benchmarks.gpu.wide import rolling_sets
from benchmarks.provenance import pairwise_ratios, summary

ARMS = {"specctl": True, "engine": False}
DRAFTS = 5
SAMPLING = {"temperature": 0.8, "top_p": 0.95}
_OURS = "batches_verified_by_specctl"
_SIGMAS = 4.0
"""Of the difference between the arms' shares of accepted drafts, by the spread of the measurements."""
_ENGINE: dict[str, Any] = {
    "dtype": "bfloat16",
    "skip_tokenizer_init": True,
    "max_model_len": 1024,
    "gpu_memory_utilization": 0.9,
    "enable_prefix_caching": False,
}


def choose(worker: Any, is_ours: bool) -> dict[str, float]:
    """In the worker: whose sampler verifies sampled batches from here on, and the counts so far."""
    from specctl_vllm.compat import verification, verified_batches

    verification.scope.sampled = is_ours
    return verified_batches.snapshot()


def measured(llm: Any, prompts: list[list[int]], arm: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=arguments.max_tokens, ignore_eos=True, detokenize=False, **SAMPLING)
    before = llm.collective_rpc(choose, args=(ARMS[arm],))[0]
    drafted = counters(llm)
    asked: Any = [{"prompt_token_ids": ids} for ids in prompts]
    started_s = time.perf_counter()
    finished = llm.generate(asked, sampling, use_tqdm=False)
    seconds = time.perf_counter() - started_s
    after = llm.collective_rpc(choose, args=(ARMS[arm],))[0]
    now = counters(llm)
    tokens = sum(len(one.outputs[0].token_ids) for one in finished)
    return {
        "tokens/s": tokens / seconds,
        "accepted": (now.get("num_accepted_tokens", 0.0) - drafted.get("num_accepted_tokens", 0.0))
        / max(now.get("num_draft_tokens", 0.0) - drafted.get("num_draft_tokens", 0.0), 1.0),
        "batches": {name: value - before.get(name, 0.0) for name, value in after.items()},
    }


def gate(arms: dict[str, list[dict[str, Any]]]) -> str | None:
    """What is wrong, None where the arms may be compared."""
    for arm, found in arms.items():
        for one in found:
            others = sum(value for name, value in one["batches"].items() if name != _OURS)
            mine, strange = one["batches"].get(_OURS, 0.0), others
            if arm == "engine":
                mine, strange = strange, mine
            if mine == 0 or strange > 0.02 * mine:  # a batch whose last requests draft nothing is counted too
                return f"{arm}: verified by {one['batches']}"
    shares = {arm: [one["accepted"] for one in found] for arm, found in arms.items()}
    apart = abs(mean(shares["specctl"]) - mean(shares["engine"]))
    spread = sum(stdev(values) ** 2 / len(values) for values in shares.values()) ** 0.5
    return None if apart <= max(_SIGMAS * spread, 0.01) else f"accepted shares {shares}"


def compared(llm: Any, sets: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for concurrent, repeats in sets.items():
        arms: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
        for repeat, prompts in enumerate(repeats):
            for arm in ARMS if repeat % 2 == 0 else reversed(ARMS):
                found = measured(llm, list(prompts), arm, arguments)
                print(concurrent, repeat, arm, found, flush=True)
                if repeat:  # the first warms up
                    arms[arm].append(found)
        refused = gate(arms)
        row: dict[str, Any] = {
            arm: {key: summary([one[key] for one in found]) for key in ("tokens/s", "accepted")}
            for arm, found in arms.items()
        }
        speeds = [[one["tokens/s"] for one in arms[arm]] for arm in ARMS]
        ratio = summary(pairwise_ratios(*speeds))
        row |= {"refused": refused} if refused else {"specctl against engine": ratio}
        figures[f"{concurrent} concurrent"] = row
        print(concurrent, json.dumps(row), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON list of prompts")
    parser.add_argument("--concurrent", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--cache-bytes", type=int, default=20 * 2**30, help="of the KV cache")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    # The worker is told by a function, which travels between vLLM's own processes.
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm import LLM

    speculative = {
        "method": "specctl_suffix",
        "num_speculative_tokens": DRAFTS,
        "use_global": False,
        "specctl": {"verify": "specctl"},
    }
    prompts = json.loads(arguments.prompts.read_text(encoding="utf-8"))
    started_s = time.perf_counter()
    llm = LLM(
        model=arguments.model,
        disable_log_stats=False,
        max_num_seqs=max(arguments.concurrent),
        kv_cache_memory_bytes=arguments.cache_bytes,
        speculative_config=speculative,
        **_ENGINE,
    )
    print(f"ready after {time.perf_counter() - started_s:.0f} s", flush=True)
    figures = compared(llm, rolling_sets(prompts, arguments.concurrent, arguments.repeats + 1), arguments)
    found = {"provenance": device_provenance(), "speculative config": speculative, "figures": figures}
    arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
