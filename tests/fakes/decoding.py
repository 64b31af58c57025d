"""A simulated course of decoding: what is drafted and accepted, what steps cost. Time passes only by
``advance``."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specctl.contract.setting import Setting
from specctl.engine.buckets import DecodeBatchBuckets

__all__ = ["COPYING", "MAX_TOKENS", "RANDOM_TEXT", "Cell", "CellKey", "Cost", "Decoding", "Traffic"]

MAX_TOKENS = 8


@dataclass
class Traffic:
    """``accept_at[j]``: chance that the first choice for token j + 1 is accepted once reached.

    ``rank_ratio``: of what the choices before it miss, the share that the next sibling in a tree hits;
    ``draft_chance``: of any draft. ``prefill_every``: every so many steps one holds ``prefill_tokens`` of
    prompts, too; 0: none.
    """

    decode_batch: int = 1
    accept_at: tuple[float, ...] = (0.9,) * MAX_TOKENS
    draft_chance: float = 1.0
    draft_tokens: int = MAX_TOKENS
    rank_ratio: float = 0.3
    prefill_every: int = 0
    prefill_tokens: int = 0


@dataclass
class Cost:
    """Seconds of a step: constant + per verified token, with a relative noise."""

    constant_s: float = 0.08
    token_s: float = 0.004
    noise_ratio: float = 0.03

    def step_s(self, tokens: int, rng: random.Random) -> float:
        return (self.constant_s + self.token_s * tokens) * (1 + self.noise_ratio * rng.gauss(0, 1))


COPYING = Traffic(accept_at=(0.95,) * MAX_TOKENS)
RANDOM_TEXT = Traffic(accept_at=(0.05,) * MAX_TOKENS)


class CellKey(NamedTuple):
    """``width``: None for a chain's own, as in a row."""

    bucket: int
    depth: int
    topk: int
    width: int | None
    has_prefill: bool

    def named(self, buckets: DecodeBatchBuckets) -> dict[str, Any]:
        low, high = buckets.bounds(self.bucket)
        return {
            "decode_batch_from": low,
            "decode_batch_to": high,
            "num_speculative_tokens": self.depth,
            "tree_topk": self.topk,
            "verify_width_tokens": self.width,
            "has_prefill": self.has_prefill,
        }


@dataclass
class Cell:
    steps: int = 0
    sampled_steps: int = 0
    request_steps: int = 0
    emitted_tokens: int = 0
    verified_tokens: int = 0
    drafted_at: list[int] = field(default_factory=lambda: [0] * MAX_TOKENS)
    accepted_at: list[int] = field(default_factory=lambda: [0] * MAX_TOKENS)
    accepted_rank_at: list[list[int]] = field(default_factory=list)
    context_tokens: int = 0
    prefill_tokens: int = 0
    step_s: float = 0.0
    step_s_squared: float = 0.0
    verified_tokens_squared: float = 0.0
    step_s_by_verified_tokens: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0


class Decoding:
    """A subclass says what the next step runs."""

    def __init__(self, traffic: Traffic, cost: Cost, decode_batch_max: int, seed: int) -> None:
        self.traffic: Traffic | None = traffic
        self.cost = cost
        self.rng = random.Random(seed)
        self.buckets = DecodeBatchBuckets(decode_batch_max)
        self.lock = threading.RLock()

    def begin(self) -> None:
        """At no time, with nothing counted."""
        self.time_s = 0.0
        self.debt_s = 0.0
        self.steps = 0
        self.cells: dict[CellKey, Cell] = {}
        self.shadow_drafts = 0
        self.shadow_drafted, self.shadow_accepted = [0] * MAX_TOKENS, [0] * MAX_TOKENS
        self.shadow_left: list[tuple[int, int, int]] = []
        self.emitted = 0

    def next_step(self, decode_batch: int) -> tuple[Setting, bool]:
        """The setting of the next step, and whether it is a sample. Asked once a step."""
        raise NotImplementedError

    def most_drafted(self, setting: Setting) -> int:
        return setting.num_speculative_tokens

    def advance(self, seconds: float) -> int:
        """Returns the tokens emitted."""
        with self.lock:
            before, self.debt_s = self.emitted, self.debt_s + seconds
            end_s = self.time_s + seconds
            while self.traffic is not None and self.debt_s > 0:
                step_s = self._step(self.traffic)
                self.debt_s -= step_s
                self.time_s += step_s
            self.debt_s = min(self.debt_s, 0.0)
            self.time_s = max(self.time_s, end_s)
            return self.emitted - before

    def _step(self, traffic: Traffic) -> float:
        batch = traffic.decode_batch
        setting, is_sampled = self.next_step(batch)
        self.steps += 1
        has_prefill = traffic.prefill_every > 0 and self.steps % traffic.prefill_every == 0
        cell = self._cell(batch, setting, has_prefill=has_prefill)
        siblings = _siblings(setting)
        verified = 0
        for request in range(batch):
            drafted, ranks = self._draw(traffic, self.most_drafted(setting), siblings)
            accepted = len(ranks)
            _count(cell.drafted_at, drafted)
            _count(cell.accepted_at, accepted)
            for depth, rank in enumerate(ranks[: len(cell.accepted_rank_at)]):
                cell.accepted_rank_at[depth][rank] += 1
            verified += setting.width_tokens if setting.tree_topk > 1 else 1 + drafted
            cell.emitted_tokens += 1 + accepted
            self.emitted += 1 + accepted
            self._follow(traffic, request, 1 + accepted)
        prompts = traffic.prefill_tokens if has_prefill else 0
        step_s = max(self.cost.step_s(verified + prompts, self.rng), 1e-4)
        cell.steps += 1
        cell.sampled_steps += is_sampled
        cell.request_steps += batch
        cell.verified_tokens += verified
        cell.prefill_tokens += prompts
        cell.context_tokens += 500 * batch
        cell.step_s += step_s
        cell.step_s_squared += step_s**2
        cell.verified_tokens_squared += verified**2
        cell.step_s_by_verified_tokens += step_s * verified
        cell.verify_s += step_s
        return step_s

    def _cell(self, batch: int, setting: Setting, *, has_prefill: bool) -> Cell:
        width = None if setting.tree_topk == 1 else setting.verify_width_tokens
        depth, topk = setting.num_speculative_tokens, setting.tree_topk
        key = CellKey(self.buckets.index(batch), depth, topk, width, has_prefill)
        if key not in self.cells:
            ranks = [[0] * topk for _ in range(depth)] if topk > 1 else []
            self.cells[key] = Cell(accepted_rank_at=ranks)
        return self.cells[key]

    def _draw(self, traffic: Traffic, limit: int, siblings: tuple[int, ...]) -> tuple[int, list[int]]:
        """Drafted tokens in a row, and the rank of every accepted one."""
        drafted = min(traffic.draft_tokens, limit) if self.rng.random() < traffic.draft_chance else 0
        ranks: list[int] = []
        while len(ranks) < drafted:
            depth = len(ranks)
            chance, rank, draw = traffic.accept_at[depth], 0, self.rng.random()
            missed = draw - chance
            while missed >= 0 and rank < siblings[depth]:
                rank += 1
                missed -= traffic.rank_ratio * (1.0 - chance)
                chance += traffic.rank_ratio * (1.0 - chance)
            if missed >= 0:
                break
            ranks.append(rank)
        return drafted, ranks

    def _follow(self, traffic: Traffic, request: int, emitted: int) -> None:
        no_siblings = (0,) * MAX_TOKENS
        while len(self.shadow_left) <= request:
            drafted, ranks = self._draw(traffic, MAX_TOKENS, no_siblings)
            self.shadow_left.append((len(ranks) + 1, drafted, len(ranks)))
        left, drafted, accepted = self.shadow_left[request]
        if left > emitted:
            self.shadow_left[request] = (left - emitted, drafted, accepted)
            return
        self.shadow_drafts += 1
        _count(self.shadow_drafted, drafted)
        _count(self.shadow_accepted, accepted)
        drafted, ranks = self._draw(traffic, MAX_TOKENS, no_siblings)
        self.shadow_left[request] = (len(ranks) + 1, drafted, len(ranks))


def _siblings(setting: Setting) -> tuple[int, ...]:
    """[depth]: siblings of the first choice; nodes beyond one a depth stand at the smallest depths."""
    left = setting.width_tokens - 1 - setting.num_speculative_tokens
    found = []
    for _ in range(setting.num_speculative_tokens):
        found.append(min(setting.tree_topk - 1, max(left, 0)))
        left -= found[-1]
    return tuple(found)


def _count(counts: list[int], length: int) -> None:
    for j in range(length):
        counts[j] += 1
