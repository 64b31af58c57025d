"""Monotonic counters of an engine's steps, by decode-batch bucket and setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specctl.contract.setting import Setting
from specctl.contract.telemetry import TelemetryCell
from specctl.engine.buckets import DecodeBatchBuckets

__all__ = ["StepCounters", "StepRecord", "at_least", "reached_and_accepted"]


class _Key(NamedTuple):
    """bucket -1: prompts alone. width 0: depth + 1."""

    bucket: int
    depth: int
    topk: int
    width: int
    has_prefill: bool
    after_rest: bool


_PROMPTS_ALONE = _Key(-1, 0, 1, 0, True, False)


@dataclass(slots=True)
class StepRecord:
    """One step. ``drafted`` and ``accepted`` hold one number of tokens for each decoding request; of a tree,
    ``drafted`` is its depth.

    ``emitted_tokens`` is less than accepted + 1 for each where a request ended inside its draft.
    ``verified_tokens``: positions that the target scored; None: each request's drafts + 1.
    ``is_mixed``: its seconds hold work of another setting, or for prompts: they are kept apart, as those of
    steps with prompts are.
    ``accepted_ranks``: of a tree, int64[depth, topk], its accepted tokens by depth and rank; None: not known.
    """

    num_speculative_tokens: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    emitted_tokens: int = 0
    context_tokens: int = 0
    prefill_tokens: int = 0
    step_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    tree_topk: int = 1
    verify_width_tokens: int | None = None
    is_sampled: bool = False
    after_rest: bool = False
    is_mixed: bool = False
    verified_tokens: int | None = None
    accepted_ranks: npt.NDArray[np.int64] | None = None

    def run_under(self, setting: Setting) -> None:
        self.num_speculative_tokens = setting.num_speculative_tokens
        self.tree_topk = setting.tree_topk
        self.verify_width_tokens = setting.verify_width_tokens


@dataclass(slots=True)
class _Cell:
    drafted_histogram: list[int]
    accepted_histogram: list[int]
    ranks: npt.NDArray[np.int64] | None = None
    steps: int = 0
    sampled_steps: int = 0
    request_steps: int = 0
    emitted_tokens: int = 0
    verified_tokens: int = 0
    context_tokens: int = 0
    prefill_tokens: int = 0
    step_s: float = 0.0
    step_s_squared: float = 0.0
    verified_tokens_squared: float = 0.0
    step_s_by_verified_tokens: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0

    def add(self, step: StepRecord) -> None:
        if len(step.drafted) != len(step.accepted):
            raise ValueError(f"accepted: expected {len(step.drafted)} numbers, got {len(step.accepted)}")
        for drafted in set(step.drafted):  # few values, counted by builtins: a step is on the clock
            self.drafted_histogram[drafted] += step.drafted.count(drafted)
        for accepted in set(step.accepted):
            self.accepted_histogram[accepted] += step.accepted.count(accepted)
        verified_tokens = step.verified_tokens
        if verified_tokens is None:
            verified_tokens = sum(step.drafted) + len(step.drafted)
        if step.accepted_ranks is not None:
            self.ranks = step.accepted_ranks if self.ranks is None else self.ranks + step.accepted_ranks
        self.steps += 1
        self.sampled_steps += step.is_sampled
        self.emitted_tokens += step.emitted_tokens
        self.request_steps += len(step.drafted)
        self.verified_tokens += verified_tokens
        self.context_tokens += step.context_tokens
        self.prefill_tokens += step.prefill_tokens
        self.step_s += step.step_s
        self.step_s_squared += step.step_s**2
        self.verified_tokens_squared += verified_tokens**2
        self.step_s_by_verified_tokens += step.step_s * verified_tokens
        self.draft_s += step.draft_s
        self.verify_s += step.verify_s


def at_least(histogram: Sequence[int]) -> tuple[int, ...]:
    """[j]: how many of the counted things were larger than j, for j from 0 to the last index but one."""
    counts: list[int] = []
    total = 0
    for count in reversed(histogram[1:]):
        total += count
        counts.append(total)
    return tuple(reversed(counts))


def reached_and_accepted(
    histograms: Mapping[int, Sequence[int]], depths: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """From histograms of accepted tokens by request-step, of each setting. [j] of the first: under a setting
    deeper than j, whose first j drafted tokens were all accepted. [j] of the second: whose first j + 1 were.
    """
    survived = {setting: (sum(h), *at_least(h)) for setting, h in histograms.items()}
    return (
        tuple(sum(s[j] for setting, s in survived.items() if setting > j) for j in range(depths)),
        tuple(sum(s[j + 1] for s in survived.values()) for j in range(depths)),
    )


@dataclass
class StepCounters:
    """Adds up steps; ``cells`` gives what the telemetry route sends. Used from one thread."""

    buckets: DecodeBatchBuckets
    num_speculative_tokens_max: int
    _cells: dict[_Key, _Cell] = field(default_factory=dict)

    def add(self, step: StepRecord) -> None:
        """Count a step. Steps without a decoding request say nothing about speculation: ignored."""
        if not step.drafted:
            return
        width = step.verify_width_tokens or 0
        if width == step.num_speculative_tokens + 1:
            width = 0
        key = _Key(
            self.buckets.index(len(step.drafted)),
            step.num_speculative_tokens,
            step.tree_topk,
            width,
            step.prefill_tokens > 0 or step.is_mixed,
            step.after_rest,
        )
        cell = self._cells.get(key)
        if cell is None:
            size = self.num_speculative_tokens_max + 1
            cell = self._cells[key] = _Cell([0] * size, [0] * size)
        cell.add(step)

    def add_prompts(self, prefill_tokens: int, step_s: float) -> None:
        """Count a step of prompts alone, for an engine that never runs them beside decoding requests: nothing
        else would tell what prompts take. They have a cell of no decode batch."""
        cell = self._cells.setdefault(_PROMPTS_ALONE, _Cell([0], [0]))
        cell.steps += 1
        cell.prefill_tokens += prefill_tokens
        cell.step_s += step_s
        cell.step_s_squared += step_s**2

    def cells(self) -> tuple[TelemetryCell, ...]:
        return tuple(self._message(key, cell) for key, cell in sorted(self._cells.items()))

    def _message(self, key: _Key, cell: _Cell) -> TelemetryCell:
        lower, upper = (0, 0) if key == _PROMPTS_ALONE else self.buckets.bounds(key.bucket)
        return TelemetryCell(
            decode_batch_from=lower,
            decode_batch_to=upper,
            num_speculative_tokens=key.depth,
            tree_topk=key.topk,
            verify_width_tokens=key.width or None,
            has_prefill=key.has_prefill,
            after_rest=key.after_rest,
            steps=cell.steps,
            sampled_steps=cell.sampled_steps,
            request_steps=cell.request_steps,
            emitted_tokens=cell.emitted_tokens,
            verified_tokens=cell.verified_tokens,
            drafted_at=at_least(cell.drafted_histogram),
            accepted_at=at_least(cell.accepted_histogram),
            accepted_rank_at=() if cell.ranks is None else tuple(map(tuple, cell.ranks.tolist())),
            context_tokens=cell.context_tokens,
            prefill_tokens=cell.prefill_tokens,
            step_s=cell.step_s,
            step_s_squared=cell.step_s_squared,
            verified_tokens_squared=cell.verified_tokens_squared,
            step_s_by_verified_tokens=cell.step_s_by_verified_tokens,
            draft_s=cell.draft_s,
            verify_s=cell.verify_s,
        )
