"""A simulated course of decoding: what is drafted and accepted, what steps cost. Time passes only by
``advance``."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field

from specctl.contract.buckets import DecodeBatchBuckets

__all__ = ["COPYING", "MAX_TOKENS", "RANDOM_TEXT", "Cell", "Cost", "Decoding", "Traffic"]

MAX_TOKENS = 8


@dataclass
class Traffic:
    """``accept_at[j]``: chance that token j + 1 is accepted once reached; ``draft_chance``: of any draft."""

    decode_batch: int = 1
    accept_at: tuple[float, ...] = (0.9,) * MAX_TOKENS
    draft_chance: float = 1.0
    draft_tokens: int = MAX_TOKENS


@dataclass
class Cost:
    """Seconds of a step: constant + per verified token, with a relative noise."""

    constant_s: float = 0.08
    token_s: float = 0.004
    noise_ratio: float = 0.03

    def step_s(self, verified_tokens: int, rng: random.Random) -> float:
        return (self.constant_s + self.token_s * verified_tokens) * (1 + self.noise_ratio * rng.gauss(0, 1))


COPYING = Traffic(accept_at=(0.95,) * MAX_TOKENS)
RANDOM_TEXT = Traffic(accept_at=(0.05,) * MAX_TOKENS)


@dataclass
class Cell:
    steps: int = 0
    request_steps: int = 0
    emitted_tokens: int = 0
    verified_tokens: int = 0
    drafted_at: list[int] = field(default_factory=lambda: [0] * MAX_TOKENS)
    accepted_at: list[int] = field(default_factory=lambda: [0] * MAX_TOKENS)
    context_tokens: int = 0
    prefill_tokens: int = 0
    step_s: float = 0.0
    step_s_squared: float = 0.0
    verified_tokens_squared: float = 0.0
    step_s_by_verified_tokens: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0


class Decoding:
    """A subclass says how many tokens are drafted, and what time ends."""

    def __init__(self, traffic: Traffic, cost: Cost, decode_batch_max: int, seed: int) -> None:
        self.traffic: Traffic | None = traffic
        self.cost = cost
        self.rng = random.Random(seed)
        self.buckets = DecodeBatchBuckets(decode_batch_max)
        self.lock = threading.Lock()

    def begin(self) -> None:
        """At no time, with nothing counted."""
        self.time_s = 0.0
        self.debt_s = 0.0
        self.cells: dict[tuple[int, int, bool], Cell] = {}
        self.shadow_drafts = 0
        self.shadow_drafted, self.shadow_accepted = [0] * MAX_TOKENS, [0] * MAX_TOKENS
        self.shadow_left: list[tuple[int, int, int]] = []
        self.emitted = 0

    def tokens_at(self, decode_batch: int) -> int:
        raise NotImplementedError

    def expire(self) -> None:
        raise NotImplementedError

    def advance(self, seconds: float) -> int:
        """Returns the tokens emitted."""
        with self.lock:
            before, self.debt_s = self.emitted, self.debt_s + seconds
            end_s = self.time_s + seconds
            while self.traffic is not None and self.debt_s > 0:
                step_s = self._step(self.traffic)
                self.debt_s -= step_s
                self.time_s += step_s
                self.expire()
            self.debt_s = min(self.debt_s, 0.0)
            self.time_s = max(self.time_s, end_s)
            self.expire()
            return self.emitted - before

    def _step(self, traffic: Traffic) -> float:
        batch = traffic.decode_batch
        limit = self.tokens_at(batch)
        cell = self.cells.setdefault((self.buckets.index(batch), limit, False), Cell())
        verified = 0
        for request in range(batch):
            drafted, accepted = self._draw(traffic, limit)
            _count(cell.drafted_at, drafted)
            _count(cell.accepted_at, accepted)
            verified += 1 + drafted
            cell.emitted_tokens += 1 + accepted
            self.emitted += 1 + accepted
            self._follow(traffic, request, 1 + accepted)
        step_s = max(self.cost.step_s(verified, self.rng), 1e-4)
        cell.steps += 1
        cell.request_steps += batch
        cell.verified_tokens += verified
        cell.context_tokens += 500 * batch
        cell.step_s += step_s
        cell.step_s_squared += step_s**2
        cell.verified_tokens_squared += verified**2
        cell.step_s_by_verified_tokens += step_s * verified
        cell.verify_s += step_s
        return step_s

    def _draw(self, traffic: Traffic, limit: int) -> tuple[int, int]:
        drafted = min(traffic.draft_tokens, limit) if self.rng.random() < traffic.draft_chance else 0
        accepted = 0
        while accepted < drafted and self.rng.random() < traffic.accept_at[accepted]:
            accepted += 1
        return drafted, accepted

    def _follow(self, traffic: Traffic, request: int, emitted: int) -> None:
        while len(self.shadow_left) <= request:
            drafted, accepted = self._draw(traffic, MAX_TOKENS)
            self.shadow_left.append((accepted + 1, drafted, accepted))
        left, drafted, accepted = self.shadow_left[request]
        if left > emitted:
            self.shadow_left[request] = (left - emitted, drafted, accepted)
            return
        self.shadow_drafts += 1
        _count(self.shadow_drafted, drafted)
        _count(self.shadow_accepted, accepted)
        drafted, accepted = self._draw(traffic, MAX_TOKENS)
        self.shadow_left[request] = (accepted + 1, drafted, accepted)


def _count(counts: list[int], length: int) -> None:
    for j in range(length):
        counts[j] += 1
