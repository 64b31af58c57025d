"""Tokens per step of both arms on the same requests: speculate, accept what the truth confirms, update."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.suffix_anchor import DEFAULT_MIN_TOKEN_PROB, Arm
from benchmarks.suffix_stream import Request
from testing.provenance import summary

BUDGETS = (8, 24)
CURVE = (0.02, 0.05, 0.1, 0.2, 0.4)
_LEAST_PROB, _MOST_PROB = 1e-6, 0.999


@dataclass
class Replay:
    steps: int = 0
    emitted_tokens: int = 0
    drafted_tokens: int = 0
    tokens_of: dict[str, int] = field(default_factory=dict)
    steps_of: dict[str, int] = field(default_factory=dict)
    estimates: list[tuple[float, bool]] = field(default_factory=list)
    """Of each drafted token: its estimated probability, and whether it was accepted."""
    speculate_s: list[float] = field(default_factory=list)
    update_s: list[float] = field(default_factory=list)

    @property
    def tokens_per_step(self) -> float:
        return self.emitted_tokens / max(1, self.steps)

    @property
    def drafted_per_step(self) -> float:
        return self.drafted_tokens / max(1, self.steps)

    def by_kind(self) -> dict[str, float]:
        return {kind: round(self.tokens_of[kind] / self.steps_of[kind], 4) for kind in self.steps_of}


def accepted_tokens(draft: Sequence[int], truth: Sequence[int]) -> int:
    """How many of the draft's first tokens are the truth's."""
    count = 0
    for drafted, true in zip(draft, truth, strict=False):
        if int(drafted) != int(true):
            break
        count += 1
    return count


def replay(arm: Arm, requests: Sequence[Request], num_speculative_tokens: int) -> Replay:
    """One request after the other; their outputs do not join the corpus, so every replay sees the same."""
    result = Replay()
    for request in requests:
        _replay_one(arm, request, num_speculative_tokens, result)
    return result


def _replay_one(arm: Arm, request: Request, num_speculative_tokens: int, result: Replay) -> None:
    every = np.ascontiguousarray(np.concatenate([request.prompt, request.output]), np.int32)
    at, steps = request.prompt.size + 1, 0
    arm.start(0, request.prompt)
    arm.update(0, arm.given(every[at - 1 : at]))
    while at < every.size:
        budget = min(num_speculative_tokens, every.size - at - 1)
        known = every[:at]
        started_s = time.perf_counter()
        draft, probs = arm.speculate(0, known, budget) if budget else ((), ())
        between_s = time.perf_counter()
        accepted = accepted_tokens(draft, every[at : at + len(draft)])
        emitted = every[at : at + accepted + 1]
        given = arm.given(emitted)
        arm.settle()
        given_s = time.perf_counter()
        arm.update(0, given)
        result.update_s.append((time.perf_counter() - given_s) / emitted.size)
        if budget:
            result.speculate_s.append(between_s - started_s)
        result.estimates += [(float(prob), j < accepted) for j, prob in enumerate(probs)]
        result.drafted_tokens += len(draft)
        at += emitted.size
        steps += 1
    arm.discard(0)
    emitted_tokens = request.output.size - 1
    result.steps += steps
    result.emitted_tokens += emitted_tokens
    result.steps_of[request.kind] = result.steps_of.get(request.kind, 0) + steps
    result.tokens_of[request.kind] = result.tokens_of.get(request.kind, 0) + emitted_tokens


def matching_threshold(
    drafted_at: Callable[[float], float], wanted: float, tolerance: float = 0.01, most_tries: int = 18
) -> float:
    """The least probability at which drafted_at, which falls with it, is ``wanted`` within ``tolerance``.

    The nearest one tried where none is. Bisection on a log scale.
    """
    low, high = np.log(_LEAST_PROB), np.log(_MOST_PROB)
    nearest, gap = DEFAULT_MIN_TOKEN_PROB, np.inf
    for i in range(most_tries):
        middle = float(np.log(DEFAULT_MIN_TOKEN_PROB)) if i == 0 else (low + high) / 2
        drafted = drafted_at(float(np.exp(middle)))
        if abs(drafted - wanted) < gap:
            nearest, gap = float(np.exp(middle)), abs(drafted - wanted)
        if gap <= tolerance * wanted:
            break
        if drafted > wanted:
            low = middle
        else:
            high = middle
    return nearest


def at_threshold(arm: Arm, requests: Sequence[Request], budget: int, least_prob: float) -> Replay:
    """In a forked process where a replay would leave traces in the arm for the next one. Outcomes of drafts
    are learnt from this replay alone."""
    arm.forget_outcomes()
    arm.set_min_token_prob(least_prob)
    try:
        if arm.forgets:
            return replay(arm, requests, budget)
        return _in_fork(lambda: replay(arm, requests, budget))
    finally:
        arm.set_min_token_prob(DEFAULT_MIN_TOKEN_PROB)


def _in_fork(call: Callable[[], Replay]) -> Replay:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(call()))
    process.start()
    sender.close()
    try:
        result: Replay = receiver.recv()
    finally:
        process.join()
    return result


def row_of(result: Replay, least_prob: float = DEFAULT_MIN_TOKEN_PROB) -> dict[str, Any]:
    return {
        "min_token_prob": round(least_prob, 6),
        "drafted_per_step": round(result.drafted_per_step, 4),
        "tokens_per_step": round(result.tokens_per_step, 4),
        "by_kind": result.by_kind(),
        "calibration_error": round(calibration_error(result.estimates), 4),
    }


def compare_budget(own: Arm, anchor: Arm, requests: Sequence[Request], budget: int) -> dict[str, Any]:
    """Defaults of both, ours at the anchor's drafted tokens, and a curve of both. Repeats would be equal."""
    theirs = at_threshold(anchor, requests, budget, DEFAULT_MIN_TOKEN_PROB)
    ours = at_threshold(own, requests, budget, DEFAULT_MIN_TOKEN_PROB)
    least_prob = matching_threshold(
        lambda prob: at_threshold(own, requests, budget, prob).drafted_per_step, theirs.drafted_per_step
    )
    matched = at_threshold(own, requests, budget, least_prob)
    arms = {"specctl": own, "anchor": anchor}
    curve = {
        name: [row_of(at_threshold(arm, requests, budget, prob), prob) for prob in CURVE]
        for name, arm in arms.items()
    }
    return {
        "anchor": row_of(theirs),
        "specctl, defaults": row_of(ours),
        "specctl, as many drafted tokens": row_of(matched, least_prob),
        "ratio of tokens per step": round(matched.tokens_per_step / theirs.tokens_per_step, 4),
        "ratio of drafted tokens": round(matched.drafted_per_step / theirs.drafted_per_step, 4),
        "curve": curve,
    }


def times_us(samples_s: Sequence[float]) -> tuple[float, float]:
    p50, p99 = np.percentile(np.array(samples_s) * 1e6, [50, 99])
    return float(p50), float(p99)


def request_times(
    own: Arm, anchor: Arm, requests: Sequence[Request], repeats: int, budget: int = BUDGETS[0]
) -> dict[str, Any]:
    """Figures of one request at a time; the arms take turns, and the first of them changes."""
    rows: dict[str, dict[str, list[float]]] = {}
    for i in range(repeats):
        for arm in (own, anchor) if i % 2 == 0 else (anchor, own):
            result = replay(arm, requests, budget)
            row = rows.setdefault(arm.name, {})
            for what, samples in (("speculate", result.speculate_s), ("update per token", result.update_s)):
                for name, value in zip(("p50", "p99"), times_us(samples), strict=True):
                    row.setdefault(f"{what}, {name} us", []).append(value)
    return {name: {key: summary(values) for key, values in row.items()} for name, row in rows.items()}


def calibration_error(estimates: Sequence[tuple[float, bool]], bins: int = 10) -> float:
    """Mean distance of estimated and true share, over equal bins of the estimate."""
    if not estimates:
        return 0.0
    estimate, came_true = np.array(estimates, np.float64).T
    at = np.minimum((estimate * bins).astype(int), bins - 1)
    gaps = [
        abs(estimate[at == b].mean() - came_true[at == b].mean()) * (at == b).mean()
        for b in range(bins)
        if (at == b).any()
    ]
    return float(sum(gaps))
