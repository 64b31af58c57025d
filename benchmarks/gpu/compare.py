"""Several engines on one GPU at the same time, taking turns: tokens per second of each, by batch.

    python -m benchmarks.gpu.compare off-cost --model FOLDER --draft FOLDER --output FILE
    python -m benchmarks.gpu.compare lossless --model FOLDER --prompts FILE --output FILE
    python -m benchmarks.gpu.compare table --model FOLDER --prompts FILE --output FILE
    python -m benchmarks.gpu.compare copying --model FOLDER --prompts FILE --output FILE
    python -m benchmarks.gpu.compare peagle --model FOLDER --draft FOLDER --peagle FOLDER --prompts FILE ...

off-cost: an 8B-shaped Llama with dummy weights; what a server pays that may draft and does not.
lossless: a small model in float32; whether specctl_suffix emits what no speculation emits, and how fast.
table: the same, with specctl's live table at each number of drafts in turn.
copying: stock suffix, specctl_suffix and no speculation.
peagle: a model and its heads; stock P-EAGLE, specctl_peagle, eagle3 and no speculation.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu.arms import in_turn, speculative, started
from benchmarks.gpu.wide import copying, peagle

_BATCHES = {"copying": [1, 4, 16, 64, 256], "peagle": [1, 8, 32]}
_OFF_TABLE = [[1, 16, 4], [17, 256, 0]]
_ENGINE = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "max_model_len": 1024,
    "max_num_seqs": 256,
    "gpu_memory_utilization": 0.24,
    # 256 requests of 448 tokens are 14 GiB; a head's layer comes on top. Four engines fit.
    "kv_cache_memory_bytes": 15 * 2**30,
    "enable_prefix_caching": False,
}


def off_cost_arms(draft: str) -> dict[str, dict[str, Any]]:
    table = {"num_speculative_tokens_per_batch_size": _OFF_TABLE}
    return {
        "never enabled": {},
        "never enabled, synchronous": {"async_scheduling": False},
        "ngram at 0": speculative("ngram", prompt_lookup_max=4, **table),
        "ngram_gpu at 0": speculative("ngram_gpu", prompt_lookup_max=4, **table),
        "eagle3 at 0": speculative("eagle3", model=draft, **table),
        "eagle3, spared at 0": speculative("eagle3", model=draft, specctl={}, **table),
        "specctl_suffix at 0": speculative("specctl_suffix", **table),
        "specctl_suffix, adaptive at 0": speculative(
            "specctl_suffix", enable_adaptive_verification=True, **table
        ),
        "specctl_suffix, live table at 0": speculative("specctl_suffix"),
    }


def off_cost(arguments: argparse.Namespace) -> dict[str, Any]:
    chosen = {
        name: {**_ENGINE, **engine}
        for name, engine in off_cost_arms(arguments.draft).items()
        if not arguments.arms or name in arguments.arms
    }
    arms = started(chosen, arguments.model, arguments.logs)
    generator = np.random.default_rng(0)
    rows: dict[str, dict[str, list[float]]] = {arm.name: {} for arm in arms}
    for batch in arguments.batch:
        prompts = generator.integers(10, 100_000, (batch, 256)).tolist()
        for repeat in range(arguments.repeats + 1):  # the first warms up
            for arm in in_turn(arms, repeat):
                is_live = arm.name.endswith("live table at 0")
                answer = arm.run(prompts, 192, **({"num_speculative_tokens": 0} if is_live else {}))
                if answer and repeat:
                    rows[arm.name].setdefault(str(batch), []).append(answer["tokens"] / answer["seconds"])
        for arm in arms:
            print(batch, arm.name, [round(value) for value in rows[arm.name].get(str(batch), [])], flush=True)
    for arm in arms:
        arm.stop()
    base = rows.get("never enabled", {})
    ratios = {
        name: {
            batch: round(median(values) / median(base[batch]), 4)
            for batch, values in row.items()
            if batch in base
        }
        for name, row in rows.items()
    }
    return {"tokens per second": rows, "against never enabled": ratios}


_SMALL_ENGINE = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 2048,
    "max_num_seqs": 64,
    "gpu_memory_utilization": 0.2,
    "kv_cache_memory_bytes": 8 * 2**30,
    "enable_prefix_caching": False,
}


def table(arguments: argparse.Namespace) -> dict[str, Any]:
    full = 8
    ours = {**_SMALL_ENGINE, **speculative("specctl_suffix", num_speculative_tokens=full)}
    arms = {"off": _SMALL_ENGINE, "specctl_suffix": ours}
    off, *steered = started(arms, arguments.model, arguments.logs)
    prompts = json.loads(Path(arguments.prompts).read_text(encoding="utf-8"))
    result: dict[str, Any] = {}
    for concurrent in arguments.batch:
        truth = off.run(prompts[:concurrent], 256, wants_outputs=True)
        again = off.run(prompts[:concurrent], 256)
        if truth is None or again is None:
            raise RuntimeError("the engine without speculation has died")
        base = again["tokens"] / again["seconds"]
        for arm in steered:
            before: dict[str, float] = {}
            for number in (*range(full, -1, -1), full):
                answer = arm.run(prompts[:concurrent], 256, wants_outputs=True, num_speculative_tokens=number)
                again = arm.run(prompts[:concurrent], 256)
                if answer is None or again is None:
                    raise RuntimeError(f"{arm.name} has died")
                same = sum(a == b for a, b in zip(answer["outputs"], truth["outputs"], strict=True))
                drafted = answer["counters"].get("num_draft_tokens", 0.0)
                row = {
                    "num_speculative_tokens": number,
                    "outputs as off": f"{same} of {concurrent}",
                    "drafted tokens": drafted - before.get("num_draft_tokens", 0.0),
                    "tokens/s against off": round(again["tokens"] / again["seconds"] / base, 3),
                }
                before = again["counters"]
                result.setdefault(arm.name, {}).setdefault(str(concurrent), []).append(row)
                print(concurrent, arm.name, row, flush=True)
    for arm in (off, *steered):
        arm.stop()
    return result


def lossless(arguments: argparse.Namespace) -> dict[str, Any]:
    engine = _SMALL_ENGINE
    arms = started(
        {
            "off": engine,
            "specctl_suffix": {**engine, **speculative("specctl_suffix", num_speculative_tokens=8)},
            "ngram_gpu": {
                **engine,
                **speculative("ngram_gpu", num_speculative_tokens=8, prompt_lookup_max=4),
            },
        },
        arguments.model,
        arguments.logs,
    )
    prompts = json.loads(Path(arguments.prompts).read_text(encoding="utf-8"))
    result: dict[str, Any] = {}
    for concurrent in arguments.batch:
        outputs: dict[str, Any] = {}
        for repeat in range(arguments.repeats + 1):
            for arm in in_turn(arms, repeat):
                answer = arm.run(prompts[:concurrent], 256, wants_outputs=repeat == 0)
                if answer is None:
                    continue
                row = result.setdefault(arm.name, {}).setdefault(str(concurrent), {"tokens/s": []})
                if repeat == 0:
                    outputs[arm.name] = answer["outputs"]
                else:
                    row["tokens/s"].append(answer["tokens"] / answer["seconds"])
                row["counters"] = answer["counters"]
        for name, texts in outputs.items():
            same = sum(a == b for a, b in zip(texts, outputs.get("off", []), strict=False))
            result[name][str(concurrent)]["outputs as off"] = f"{same} of {len(texts)}"
        for name in result:
            print(concurrent, name, result[name].get(str(concurrent)), flush=True)
    for arm in arms:
        arm.stop()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("off-cost", "lossless", "table", "copying", "peagle"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", default="", help="EAGLE-3 head")
    parser.add_argument("--peagle", default="", help="P-EAGLE head")
    parser.add_argument("--prompts", default="")
    parser.add_argument("--arms", nargs="*", default=[])
    parser.add_argument("--batch", type=int, nargs="*", help="requests at the same time")
    parser.add_argument("--max-tokens", type=int, default=192, help="of an answer, in copying and peagle")
    parser.add_argument("--num-speculative-tokens", type=int, help="in copying (8) and peagle (5)")
    parser.add_argument("--waves", type=int, default=1, help="in copying: requests for each place of a batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--logs", type=Path, default=Path("/tmp/arms"))
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.logs.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    runs = {"off-cost": off_cost, "lossless": lossless, "table": table, "copying": copying, "peagle": peagle}
    arguments.batch = arguments.batch or _BATCHES.get(arguments.what, [128, 256])
    figures = runs[arguments.what](arguments)
    arguments.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    for name in ("against never enabled", "gate", "tokens/s against off"):
        if name in figures:
            print(name, json.dumps(figures[name], indent=1))


if __name__ == "__main__":
    main()
