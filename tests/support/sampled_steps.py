"""What a server tells of steps that it samples, for tests on real ones."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from support.engine_control import Control

__all__ = [
    "Counted",
    "Shape",
    "assert_chains_are_sampled",
    "assert_off_is_not_slower",
    "assert_samples_fill_both_cells",
    "chain",
    "counted",
    "greedy_while_sampling",
    "ran",
    "sampled_rows",
]

Shape = tuple[int, int, int]
"""Depth, branches and positions."""


@dataclass
class Counted:
    """Of one setting. Seconds are those of steps without prompts, and not after a rest."""

    steps: int = 0
    sampled_steps: int = 0
    after_rest_steps: int = 0
    request_steps: int = 0
    emitted_tokens: int = 0
    verified_tokens: int = 0
    pure_steps: int = 0
    pure_s: float = 0.0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    """Summed over depths."""

    @property
    def first_acceptance(self) -> float:
        return self.accepted_at[0] / max(self.drafted_at[0], 1)

    @property
    def accepted_a_draft(self) -> float:
        return sum(self.accepted_at) / max(self.drafted_at[0], 1)

    @property
    def step_s(self) -> float:
        return self.pure_s / max(self.pure_steps, 1)

    def add(self, cell: dict[str, Any], sign: int) -> None:
        for name in ("steps", "sampled_steps", "request_steps", "emitted_tokens", "verified_tokens"):
            setattr(self, name, getattr(self, name) + sign * cell[name])
        self.after_rest_steps += sign * cell["steps"] * cell["after_rest"]
        if not cell["has_prefill"] and not cell["after_rest"]:
            self.pure_steps += sign * cell["steps"]
            self.pure_s += sign * cell["step_s"]
        for name in ("drafted_at", "accepted_at"):
            setattr(self, name, _added(getattr(self, name), cell[name], sign))
        for at_depth in cell["accepted_rank_at"]:
            self.ranks = _added(self.ranks, at_depth, sign)


def _added(one: Sequence[int], other: Sequence[int], sign: int) -> list[int]:
    size = max(len(one), len(other))
    padded = ([*values, *[0] * (size - len(values))] for values in (one, other))
    return [a + sign * b for a, b in zip(*padded, strict=True)]


def counted(control: Control, before: Sequence[dict[str, Any]] = ()) -> dict[Shape, Counted]:
    """By setting, since the cells ``before``; steps of prompts alone left out."""
    found: dict[Shape, Counted] = defaultdict(Counted)
    for sign, cells in ((1, control.get("telemetry")["cells"]), (-1, before)):
        for cell in cells:
            if cell["decode_batch_to"]:
                depth = cell["num_speculative_tokens"]
                shape = depth, cell["tree_topk"], cell["verify_width_tokens"] or depth + 1
                found[shape].add(cell, sign)
    return {shape: one for shape, one in found.items() if one.steps}


def sampled_rows(base: Shape, sampled: Shape, every_steps: int) -> list[dict[str, Any]]:
    names = "num_speculative_tokens", "tree_topk", "verify_width_tokens"
    asked, setting = (dict(zip(names, shape, strict=True)) for shape in (base, sampled))
    sample = {"setting": setting, "every_steps": every_steps}
    return [{"decode_batch_from": 1, **asked, "sample": sample}]


def ran(
    control: Control,
    rows: list[dict[str, Any]],
    prompts: Sequence[str],
    max_tokens: int = 64,
    concurrency: int = 4,
) -> tuple[list[list[int]], dict[Shape, Counted]]:
    """Greedy outputs under a table, and what was counted meanwhile."""
    answer = control.put(control.change(0, rows=rows))
    assert answer.status_code == 200, answer.text
    before = control.get("telemetry")["cells"]
    with ThreadPoolExecutor(concurrency) as pool:
        outputs = list(pool.map(lambda prompt: control.complete(prompt, max_tokens), prompts))
    return outputs, counted(control, before)


def assert_samples_fill_both_cells(
    control: Control,
    reference: list[list[int]],
    base: Shape,
    sampled: Shape,
    prompts: Sequence[str],
    every_steps: int = 3,
    **more: Any,
) -> dict[Shape, Counted]:
    """So many steps are samples, and the outputs those of no drafts."""
    outputs, found = ran(control, sampled_rows(base, sampled, every_steps), prompts, **more)
    assert outputs == reference
    others = {shape: one.steps for shape, one in found.items() if shape not in (base, sampled)}
    # Steps that were under way when the table came.
    assert sum(others.values()) <= 2, others
    assert found[base].sampled_steps <= 1
    assert found[sampled].sampled_steps >= found[sampled].steps - 2
    steps = found[base].steps + found[sampled].steps
    assert abs(found[sampled].steps - steps / every_steps) <= 2 + 0.02 * steps
    if sampled[0]:
        assert found[sampled].drafted_at[0] > 0
    else:
        assert sum(found[sampled].drafted_at) == 0
    return found


def chain(drafts: int) -> Shape:
    return drafts, 1, drafts + 1


def greedy_while_sampling(
    control: Control, prompts: Sequence[str], tables: Iterable[list[dict[str, Any]]], concurrency: int = 4
) -> list[list[int]]:
    """Outputs while one table after the other comes. A small model is quick: the prompts come again until at
    least five tables have come, with the same outputs."""
    count, rounds = 0, []
    changes = iter(tables)
    with ThreadPoolExecutor(concurrency) as pool:
        while count < 5:
            running = [pool.submit(control.complete, prompt) for prompt in prompts]
            while not all(one.done() for one in running):
                assert control.put(control.change(0, rows=next(changes))).status_code == 200
                count += 1
                time.sleep(0.05)
            rounds.append([one.result() for one in running])
    assert all(outputs == rounds[0] for outputs in rounds)
    return rounds[0]


def assert_chains_are_sampled(
    control: Control, prompts: Sequence[str], drafts: int, margin: float = 0.25, **more: Any
) -> None:
    """0 while it drafts, and drafts while it is off: both as a table of that number alone has them. The
    output stays the same, also while such tables take turns."""
    off, full = chain(0), chain(drafts)
    reference, _ = ran(control, [{"decode_batch_from": 1, "num_speculative_tokens": 0}], prompts, **more)
    outputs, alone = ran(
        control, [{"decode_batch_from": 1, "num_speculative_tokens": drafts}], prompts, **more
    )
    assert outputs == reference
    while_drafting = assert_samples_fill_both_cells(control, reference, full, off, prompts, **more)
    while_off = assert_samples_fill_both_cells(control, reference, off, full, prompts, **more)
    changing = cycle([sampled_rows(full, off, 2), sampled_rows(off, full, 3), sampled_rows(full, off, 50)])
    short = [output[:32] for output in reference]
    assert [o[:32] for o in greedy_while_sampling(control, prompts, changing)] == short
    for found in (while_drafting, while_off):
        assert abs(found[full].first_acceptance - alone[full].first_acceptance) < margin
    assert_off_is_not_slower(control, while_drafting, full, off, prompts, **more)
    assert_off_is_not_slower(control, while_off, off, full, prompts, **more)


def assert_off_is_not_slower(
    control: Control,
    found: dict[Shape, Counted],
    base: Shape,
    sampled: Shape,
    prompts: Sequence[str],
    **more: Any,
) -> None:
    """A step of 0 drafts takes less than 1.3 times one of the other setting. Other programs run beside the
    tests and can only add to a step: the quickest mean of each setting counts, of three runs at most."""
    off, drafting = sorted((base, sampled))
    runs = [found]
    while min(one[off].step_s for one in runs) >= 1.3 * min(one[drafting].step_s for one in runs):
        assert len(runs) < 3, [(one[off].step_s, one[drafting].step_s) for one in runs]
        runs.append(ran(control, sampled_rows(base, sampled, 3), prompts, **more)[1])
