"""Steps of a batch of requests that end and are replaced, the same for both arms of ``make bench-suffix``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.suffix_stream import MAX_CONTEXT_TOKENS, MAX_RESPONSE_TOKENS, Ints

MOST_TOKENS_OF_A_STEP = 3
_LEAST_PROMPT, _LEAST_OUTPUT = 64, 64


@dataclass(frozen=True)
class Step:
    """First requests end, then new ones start in their slots, then every slot emits tokens."""

    finished: list[int]
    started: list[tuple[int, Ints]]
    """(slot, prompt)"""
    slots: Ints
    tokens: Ints
    offsets: Ints
    known: list[Ints]
    """All tokens of each slot's request, the new ones included; views, not copies."""

    def token_lists(self) -> list[list[int]]:
        return [part.tolist() for part in np.split(self.tokens, self.offsets[1:-1])]


@dataclass
class _Active:
    every: Ints
    prompt_tokens: int
    at: int


def schedule(responses: Sequence[Ints], batch: int, steps: int, seed: int = 0) -> list[Step]:
    """The first step starts all slots, at any point of their outputs; each token of text is emitted once."""
    generator = np.random.default_rng(seed)
    waiting = _requests(np.concatenate(responses), generator)
    active: list[_Active] = []
    for _ in range(batch):
        request = next(waiting)
        request.prompt_tokens += int(generator.integers(request.every.size - request.prompt_tokens - 1))
        request.at = request.prompt_tokens
        active.append(request)
    started = [(slot, request.every[: request.at]) for slot, request in enumerate(active)]
    taken = [_step([], started, active, generator)]
    for _ in range(steps - 1):
        finished = [slot for slot, request in enumerate(active) if request.at == request.every.size]
        for slot in finished:
            active[slot] = next(waiting)
        started = [(slot, active[slot].every[: active[slot].at]) for slot in finished]
        taken.append(_step(finished, started, active, generator))
    return taken


def _requests(flat: Ints, generator: np.random.Generator) -> Iterator[_Active]:
    """Consecutive outputs of a text, each with what stands before it as its prompt."""
    at = MAX_CONTEXT_TOKENS
    while True:
        output = int(generator.integers(_LEAST_OUTPUT, MAX_RESPONSE_TOKENS + 1))
        prompt = int(generator.integers(_LEAST_PROMPT, MAX_CONTEXT_TOKENS - MAX_RESPONSE_TOKENS))
        if at + output > flat.size:
            raise ValueError(f"expected more than {flat.size} tokens of text for so many requests")
        yield _Active(flat[at - prompt : at + output], prompt, prompt)
        at += output


def _step(
    finished: list[int],
    started: list[tuple[int, Ints]],
    active: Sequence[_Active],
    generator: np.random.Generator,
) -> Step:
    new: list[Ints] = []
    known: list[Ints] = []
    for request in active:
        end = min(
            request.at + int(generator.integers(1, MOST_TOKENS_OF_A_STEP + 1)),
            request.every.size,
        )
        new.append(request.every[request.at : end])
        known.append(request.every[:end])
        request.at = end
    return Step(
        finished=finished,
        started=started,
        slots=np.arange(len(active), dtype=np.int32),
        tokens=np.concatenate(new),
        offsets=np.concatenate([[0], np.cumsum([part.size for part in new])]).astype(np.int32),
        known=known,
    )
