"""The parts of benchmarks.gpu.sglang_compare, over servers that stand.

A set of prompts belongs to one batch and one repeat and is the same for all arms, which take turns. The first
set of each batch warms up and is not timed; outputs of every set are compared with those of off. Where one
parts from it, off scores the two tokens (benchmarks.gpu.ties): an arm gets a ratio where every output is
equal or parts by a tie.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.gpu.arms import in_turn
from benchmarks.gpu.sglang_arms import GREEDY, Arm
from benchmarks.gpu.sglang_settings import OFF_FEW
from benchmarks.gpu.ties import judged, partings
from benchmarks.gpu.ties import told as told_of_ties
from benchmarks.gpu.wide import ratios, repeated
from testing.provenance import summary

__all__ = ["compared", "copying", "off", "peagle", "sets_of", "speculates", "told_against", "tree"]

_PROMPT_TOKENS = 256
_REQUESTS_MIN = 4
"""Of a set in copying, one after another where fewer are asked for at a time: one text alone says little."""
_TIMES = 8
"""Of a set of a head's prompts, in numbers of requests at the same time."""
_TIMES_ONCE_ONLY = 2
"""The same where no prompt may occur twice."""
_TREE_PROMPTS = 16
_Figures = dict[str, Any]
_Sets = Mapping[int, Sequence[Sequence[list[int]]]]


def copying(
    arms: list[Arm], prompts: list[list[int]], batches: Sequence[int], repeats: int, tokens: int
) -> _Figures:
    """No prompt occurs twice: a corpus is as warm as answers to other prompts make it."""
    off_name = _first_of(arms, "off")
    sets = sets_of(prompts, batches, repeats + 1, times=_TIMES_ONCE_ONLY)
    figures = compared(arms, sets, tokens, off_name)
    stock = _first_of(arms, "ngram")
    return figures | told_against(figures["arms"], stock, steered(arms))


def _first_of(arms: Sequence[Arm], beginning: str) -> str:
    return next((arm.name for arm in arms if arm.name.startswith(beginning)), beginning)


def off(
    arms: list[Arm], _prompts: list[list[int]], batches: Sequence[int], repeats: int, tokens: int
) -> _Figures:
    """Prompts of random tokens. Stock speculation has no part in it."""
    generator = random.Random(0)
    count = sum(max(batch, _REQUESTS_MIN) for batch in batches) * (repeats + 1)
    prompts = [[generator.randrange(10, 16_000) for _ in range(_PROMPT_TOKENS)] for _ in range(count)]
    taking_part = [
        arm
        for arm in arms
        if arm.setting.places >= max(batches) and (arm.setting.rows or not speculates(arm))
    ]
    for arm in (arm for arm in taking_part if arm.setting.rows):
        arm.set_rows([(1, 0)])
    figures = compared(taking_part, sets_of(prompts, batches, repeats + 1), tokens)
    for arm in (arm for arm in taking_part if arm.setting.rows):
        arm.set_rows(arm.setting.rows)
    return figures | told_against(figures["arms"], "off", steered(taking_part))


def peagle(
    arms: list[Arm], prompts: list[list[int]], batches: Sequence[int], repeats: int, tokens: int
) -> _Figures:
    """Both heads at several numbers of drafts. Prompts may occur again: a head has no memory. Several times
    as many as go at once: where all begin and end together, the slowest decides."""
    sets = sets_of(prompts, batches, repeats + 1, may_repeat=True, times=_TIMES)
    figures = compared(arms, sets, tokens, OFF_FEW)
    return figures | against_best(figures["arms"], "eagle3", "specctl_peagle")


def against_best(rows: Mapping[str, Mapping[str, Any]], base: str, ours: str) -> _Figures:
    """By batch, each of ours (arms of that beginning) against the quickest of the base's."""
    found: dict[str, _Figures] = {}
    for batch in sorted({batch for row in rows.values() for batch in row}, key=int):
        here = {name: {batch: row[batch]} for name, row in rows.items() if batch in row}
        bases = [name for name in here if name.startswith(base)]
        if bases:
            best = max(bases, key=lambda name: here[name][batch]["summary"]["median"])
            names = [name for name in here if name.startswith(ours)]
            found[batch] = {"quickest": best, **told_against(here, best, names)}
    return {f"against the quickest {base}": found}


def tree(
    arms: list[Arm], prompts: list[list[int]], batches: Sequence[int], _repeats: int, tokens: int
) -> _Figures:
    """Requests one after another; the trees of a width against its longest chain."""
    sets = {batches[0]: [prompts[:2], prompts[2 : 2 + _TREE_PROMPTS]]}
    figures = compared(arms, sets, tokens, OFF_FEW)
    steps: dict[str, dict[str, float]] = {}
    for name, row in figures["arms"].items():
        for one in row.values():
            if name.startswith(("chain-", "tree-")) and one["tokens a step"] is not None:
                steps.setdefault(name.split("-")[1], {})[name] = one["tokens a step"]
    against = {}
    for width, by_name in steps.items():
        passed = {name: value for name, value in by_name.items() if figures["gate"][name]["passes"]}
        chain = passed.get(f"chain-{width}")
        trees = {name: value for name, value in passed.items() if name.startswith("tree")}
        if chain and trees:
            best = max(trees, key=lambda name: trees[name])
            ratio = round(trees[best] / chain, 4)
            against[width] = {"best": best, "tree / chain": ratio}
            print(f"tokens a step: {best} / chain-{width}: {ratio}", flush=True)
    if not against:
        print("tree: no width has both a tree and a chain that pass the gate", flush=True)
    return figures | {"tokens a step": steps, "trees against chains": against}


def sets_of(
    prompts: Sequence[list[int]], batches: Sequence[int], count: int, may_repeat: bool = False, times: int = 1
) -> _Sets:
    """``count`` sets for each batch, ``times`` its size, from the first prompt on. Raises ValueError for too
    few."""
    sizes = [max(batch * times, _REQUESTS_MIN) for batch in batches]
    needed = max(sizes) if may_repeat else sum(sizes) * count
    if len(prompts) < needed:
        raise ValueError(f"expected {needed} prompts, got {len(prompts)}")
    at = 0
    sets: dict[int, list[list[list[int]]]] = {}
    for batch, size in zip(batches, sizes, strict=True):
        for _ in range(count):
            sets.setdefault(batch, []).append([prompts[(at + i) % len(prompts)] for i in range(size)])
            at += size
    return sets


def speculates(arm: Arm) -> bool:
    return "--speculative-algorithm" in arm.setting.arguments


def steered(arms: Sequence[Arm]) -> list[str]:
    return [arm.name for arm in arms if arm.setting.rows]


def compared(
    arms: list[Arm],
    sets: _Sets,
    tokens: int,
    off_name: str = "off",
    options: Mapping[str, float] = GREEDY,
) -> _Figures:
    """Every set through every arm: tokens/s, equal outputs, tokens a step and accepted drafts a step.
    ``options``: of sampling."""
    alive = list(arms)
    rows: dict[str, dict[str, Any]] = {arm.name: {} for arm in arms}
    left_out: list[str] = []
    for batch, repeats in sets.items():
        taken, done = _sets_through(alive, repeats, batch, tokens, options)
        if len(done) < len(repeats):
            left_out.append(f"{batch} at once: {len(repeats) - len(done)} of {len(repeats)} sets")
        if len(done) < 2:
            continue
        judge = next((arm for arm in alive if arm.name == off_name), None)
        for name, answers in taken.items():
            if None in answers:
                left_out.append(f"{batch} at once: {name} has died")
                continue
            rows[name][str(batch)] = row_of(answers, taken.get(off_name))
            if name == off_name:
                rows[name][str(batch)]["repeated_share"] = repeated(done, answers)
            elif judge is not None:
                rows[name][str(batch)]["parted"] = parted(judge, done, answers, taken[off_name])
            print(f"{batch} at once, {name}: {brief(rows[name][str(batch)])}", flush=True)
    return {"arms": rows, "left out": left_out, "gate": {name: gate(row) for name, row in rows.items()}}


def _sets_through(
    alive: list[Arm],
    repeats: Sequence[Sequence[list[int]]],
    batch: int,
    tokens: int,
    options: Mapping[str, float],
) -> tuple[dict[str, list[Any]], list[Sequence[list[int]]]]:
    """Answers by arm, of the sets for which there was time for all, and those sets. An arm that has died
    answers None and leaves ``alive``."""
    taken: dict[str, list[Any]] = {arm.name: [] for arm in alive}
    done: list[Sequence[list[int]]] = []
    for repeat, prompts in enumerate(repeats):
        if alive and alive[0].deadline.is_over():
            break
        found: dict[str, Any] = {}
        for arm in in_turn(list(alive), repeat):
            found[arm.name] = arm.run(list(prompts), tokens, batch, options)
            if found[arm.name] is not None:
                continue
            if arm.deadline.is_over():
                return taken, done
            alive.remove(arm)
        for name, answers in found.items():
            taken[name].append(answers)
        done.append(prompts)
    return taken, done


def parted(
    judge: Arm, sets: Sequence[Sequence[list[int]]], answers: Sequence[Any], truth: Sequence[Any]
) -> _Figures:
    """Of the outputs of every set that are not off's: benchmarks.gpu.ties.judged."""
    found = [
        one
        for prompts, mine, other in zip(sets, answers, truth, strict=True)
        for one in partings(prompts, mine["outputs"], other["outputs"])
    ]
    return judged(judge, found)


def gate(row: Mapping[str, Any]) -> _Figures:
    """Equal outputs and ties of an arm over all batches. ``passes``: there are no others; None where there is
    no off to compare with."""
    counted = [one for one in row.values() if "outputs" in one]
    outputs, same = sum(one["outputs"] for one in counted), sum(one["outputs as off"] for one in counted)
    ties = sum(one.get("parted", {}).get("ties", 0) for one in counted)
    passes = same + ties == outputs if outputs else None
    return {"outputs as off": same, "ties": ties, "outputs": outputs, "passes": passes}


def row_of(answers: Sequence[Any], truth: Sequence[Any] | None) -> _Figures:
    """One arm at one batch: all but outputs without the first answer."""
    timed = answers[1:]
    speeds = [one["tokens"] / one["seconds"] for one in timed]
    row: _Figures = {"tokens/s": speeds, "summary": summary(speeds)}
    row["tokens"] = sum(one["tokens"] for one in timed)
    row["tokens a step"] = row["accepted drafts a step"] = None
    if all(one["steps"] for one in timed):
        steps = sum(one["steps"] for one in timed)
        first_tokens = sum(len(one["outputs"]) for one in timed)
        # A request's first token comes with its prompt.
        row["tokens a step"] = round((row["tokens"] - first_tokens) / steps, 4)
        row["accepted drafts a step"] = round(sum(one["accepted"] for one in timed) / steps, 4)
    if truth and None not in truth:
        pairs = [
            (mine, other)
            for answer, one in zip(answers, truth, strict=True)
            for mine, other in zip(answer["outputs"], one["outputs"], strict=True)
        ]
        row["outputs"] = len(pairs)
        row["outputs as off"] = sum(mine == other for mine, other in pairs)
    return row


def brief(row: Mapping[str, Any]) -> str:
    told, parts = row["summary"], []
    parts.append(f"{told['median']:,.0f} tokens/s ({told['min']:,.0f} to {told['max']:,.0f})")
    if row["tokens a step"] is not None:
        parts.append(
            f"{row['tokens a step']:.2f} tokens and {row['accepted drafts a step']:.2f} drafts a step"
        )
    if "outputs" in row:
        parts.append(f"{row['outputs as off']} of {row['outputs']} outputs as off")
    if words := told_of_ties(row.get("parted", {})):
        parts.append(words)
    return ", ".join(parts)


def told_against(
    rows: Mapping[str, Mapping[str, Any]],
    base: str,
    names: Sequence[str],
    gate_of: Callable[[Mapping[str, Any]], _Figures] = gate,
) -> _Figures:
    """Ratios to ``base``; an arm whose gate fails gets none."""
    against = ratios(rows, base, gate_of)
    if not rows.get(base) or not any(rows.get(name) for name in names):
        print(f"nothing to tell against {base}: it or ours was not measured", flush=True)
    for name in names:
        for batch in rows.get(name, {}):
            one = against.get(name, {}).get(batch)
            told = (
                f"no ratio, {json.dumps(gate_of(rows[name]))}"
                if one is None
                else f"{one['median']:.3f} ({one['min']:.3f} to {one['max']:.3f})"
            )
            print(f"{batch} at once: {name} / {base}: {told}", flush=True)
    found = {f"tokens/s against {base}": against}
    off_name = next((name for name in rows if name.startswith("off")), base)
    return found | {f"tokens/s against {off_name}": ratios(rows, off_name, gate_of)}
