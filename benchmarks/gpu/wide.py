"""compare copying and compare peagle: arms that take turns, new prompts for each turn.

A set of prompts belongs to one batch and one repeat and is the same for all arms. In copying no prompt occurs
twice: a corpus is as warm as earlier answers to other prompts make it, and never knows the answer. The first
set of each batch warms up and is not timed; the outputs of every set are compared with those of off.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.copying import repeated_share
from benchmarks.gpu.arms import Arm, in_turn, margins, speculative, started
from testing.provenance import pairwise_ratios, summary

GATE_SHARE_MIN = 0.8
"""Of outputs equal to off's, or to the stock method's where off is not run. In bf16 sums depend on the tokens
of a step and near ties flip: the small model differs from itself at another batch in one answer of eight. An
arm below it gets no ratio."""
SUFFIX_TABLE = [[1, 32, 8], [33, 128, 4], [129, 256, 3]]
"""specctl_suffix's, by the cost of verified tokens on an H200; stock suffix takes no table."""
_ENGINE = {
    "dtype": "bfloat16",
    "skip_tokenizer_init": True,
    "gpu_memory_utilization": 0.24,
    "enable_prefix_caching": False,
}
_Sets = Mapping[int, Sequence[Sequence[list[int]]]]


def copying(arguments: argparse.Namespace) -> dict[str, Any]:
    if "VLLM_USE_V2_MODEL_RUNNER" in os.environ:
        raise RuntimeError("VLLM_USE_V2_MODEL_RUNNER: expected unset, as stock suffix picks its own")
    # 256 requests of 400 tokens and their answers, 128 KiB a token. 140 GiB hold three engines with 256
    # output tokens, or two with 512: choose with --arms.
    cache = (20 if arguments.max_tokens <= 256 else 30) * 2**30
    # An engine takes as many as it has places for: more waves need batches of one size.
    places = 256 if arguments.waves == 1 else max(arguments.batch)
    engine = {**_ENGINE, "max_model_len": 1024, "max_num_seqs": places, "kv_cache_memory_bytes": cache}
    number = {"num_speculative_tokens": arguments.num_speculative_tokens or 8}
    table = {"num_speculative_tokens_per_batch_size": SUFFIX_TABLE}
    arms = {
        "off": engine,
        "suffix": engine | speculative("suffix", **number),
        "specctl_suffix": engine | speculative("specctl_suffix", **number, **table),
        "specctl_suffix, adaptive": engine
        | speculative("specctl_suffix", **number, enable_adaptive_verification=True),
    }
    prompts = json.loads(Path(arguments.prompts).read_text(encoding="utf-8"))
    sizes = [batch * arguments.waves for batch in arguments.batch]
    return compared(arguments, arms, distinct_sets(prompts, sizes, arguments.repeats + 1), "suffix")


def peagle(arguments: argparse.Namespace) -> dict[str, Any]:
    most = max(arguments.batch)
    engine = {**_ENGINE, "max_model_len": 2048, "max_num_seqs": most, "kv_cache_memory_bytes": 6 * 2**30}
    number = {"num_speculative_tokens": arguments.num_speculative_tokens or 5}
    arms = {
        "off": engine,
        "peagle": engine | speculative("eagle3", model=arguments.peagle, parallel_drafting=True, **number),
        "specctl_peagle": engine | speculative("specctl_peagle", model=arguments.peagle, **number),
        "specctl_hybrid": engine | speculative("specctl_hybrid", model=arguments.peagle, **number),
        "eagle3": engine | speculative("eagle3", model=arguments.draft, **number),
    }
    prompts = json.loads(Path(arguments.prompts).read_text(encoding="utf-8"))
    return compared(arguments, arms, rolling_sets(prompts, arguments.batch, arguments.repeats + 1), "peagle")


def distinct_sets(prompts: Sequence[list[int]], batches: Sequence[int], repeats: int) -> _Sets:
    """``repeats`` sets for each batch, none of whose prompts occurs again. Raises ValueError for too few."""
    if len(prompts) < sum(batches) * repeats:
        raise ValueError(f"expected {sum(batches) * repeats} prompts for {repeats} sets, got {len(prompts)}")
    return rolling_sets(prompts, batches, repeats)


def rolling_sets(prompts: Sequence[list[int]], batches: Sequence[int], repeats: int) -> _Sets:
    """``repeats`` sets for each batch, from the first prompt on and over again: for arms without a memory."""
    if len(prompts) < max(batches):
        raise ValueError(f"expected at least {max(batches)} prompts, got {len(prompts)}")
    at = 0
    sets: dict[int, list[list[list[int]]]] = {}
    for batch in batches:
        for _ in range(repeats):
            sets.setdefault(batch, []).append([prompts[(at + i) % len(prompts)] for i in range(batch)])
            at += batch
    return sets


def compared(
    arguments: argparse.Namespace, engines: dict[str, dict[str, Any]], sets: _Sets, stock: str
) -> dict[str, Any]:
    """Every set through every arm; tokens per second, counters and equal outputs by arm and batch."""
    engines = {name: one for name, one in engines.items() if not arguments.arms or name in arguments.arms}
    arms = started(engines, arguments.model, arguments.logs)
    rows: dict[str, dict[str, Any]] = {arm.name: {} for arm in arms}
    for batch, repeats in sets.items():
        taken: dict[str, list[dict[str, Any] | None]] = {arm.name: [] for arm in arms}
        for repeat, prompts in enumerate(repeats):
            for arm in in_turn(arms, repeat):
                taken[arm.name].append(arm.run(list(prompts), arguments.max_tokens, wants_outputs=True))
        for name, answers in taken.items():
            if None not in answers:
                rows[name][str(batch)] = row_of(answers, taken.get("off", taken.get(stock, [])))
                if name == "off":
                    rows[name][str(batch)]["repeated_share"] = repeated(repeats, answers)
                elif "off" in taken and None not in taken["off"]:
                    rows[name][str(batch)]["margins where outputs part"] = parted(
                        arms[0], repeats, answers, taken["off"]
                    )
                print(batch, name, rows[name][str(batch)], flush=True)
    for arm in arms:
        arm.stop()
    return {
        "engines": engines,
        "max tokens": arguments.max_tokens,
        "requests for each place": arguments.waves,
        "prompt tokens": summary([len(one) for found in sets.values() for part in found for one in part]),
        "arms": rows,
        "gate": {name: gate(row) for name, row in rows.items()},
        "tokens/s against off": ratios(rows, "off"),
        "tokens/s against stock": ratios(rows, stock),
    }


def row_of(answers: Sequence[Any], off: Sequence[Any]) -> dict[str, Any]:
    """One arm at one batch. Speeds and counters leave out the first answer; outputs do not.

    The counters know steps with a draft alone, and count accepted tokens past the end of an answer too: the
    acceptance_length is of those steps, and tokens less accepted tokens is no number of steps.
    """
    timed = answers[1:]
    speeds = [answer["tokens"] / answer["seconds"] for answer in timed]
    first, last = answers[0]["counters"], answers[-1]["counters"]
    counted = {name: value - first.get(name, 0.0) for name, value in last.items()}
    drafts, drafted = counted.get("num_drafts"), counted.get("num_draft_tokens")
    accepted = counted.get("num_accepted_tokens", 0.0)
    tokens = sum(answer["tokens"] for answer in timed)
    row = {"tokens/s": speeds, "summary": summary(speeds), "tokens": tokens, **counted}
    row["acceptance_length"] = round(1 + accepted / drafts, 3) if drafts else None
    row["acceptance_rate"] = round(accepted / drafted, 3) if drafted else None
    if off and None not in off:
        pairs = [
            (mine, truth)
            for answer, other in zip(answers, off, strict=True)
            for mine, truth in zip(answer["outputs"], other["outputs"], strict=True)
        ]
        row["outputs"] = len(pairs)
        row["outputs as off"] = sum(mine == truth for mine, truth in pairs)
    return row


def parted(judge: Arm, sets: Sequence[Sequence[list[int]]], answers: Any, truth: Any) -> list[float]:
    """Sorted; in log probability, by the engine without speculation."""
    return sorted(
        round(margin, 4)
        for prompts, mine, other in zip(sets, answers, truth, strict=True)
        for margin in margins(judge, list(prompts), mine["outputs"], other["outputs"]).values()
    )


def repeated(sets: Sequence[Sequence[list[int]]], answers: Sequence[Any]) -> dict[str, Any]:
    """Share of the n-grams of an answer that occurred before, in prompt or answer: what there is to copy."""
    return summary(
        [
            repeated_share(prompt, output)
            for prompts, answer in zip(sets, answers, strict=True)
            for prompt, output in zip(prompts, answer["outputs"], strict=True)
        ]
    )


def gate(row: Mapping[str, Any]) -> dict[str, Any]:
    """Equal outputs of an arm over all batches; ``passes`` is None where there is no off to compare with."""
    counted = [one for one in row.values() if "outputs" in one]
    outputs, same = sum(one["outputs"] for one in counted), sum(one["outputs as off"] for one in counted)
    passes = same >= GATE_SHARE_MIN * outputs if outputs else None
    return {"outputs as off": same, "outputs": outputs, "passes": passes}


def ratios(
    rows: Mapping[str, Mapping[str, Any]],
    base_arm: str,
    gate_of: Callable[[Mapping[str, Any]], dict[str, Any]] = gate,
) -> dict[str, dict[str, Any]]:
    """Over the repeats: tokens/s against another arm on the same prompts, where the gate passes."""
    found: dict[str, dict[str, Any]] = {}
    for name, row in rows.items():
        if not gate_of(row)["passes"]:
            continue
        for batch, one in row.items():
            if batch not in rows.get(base_arm, {}):
                continue
            base = rows[base_arm][batch]["tokens/s"]
            found.setdefault(name, {})[batch] = summary(pairwise_ratios(one["tokens/s"], base))
    return found
