"""When specctl_hybrid's draft head runs: while it brings more tokens than its time costs.

``HeadPace`` decides from readings; ``DeviceReadings`` brings them from the device, some steps late, without
ever waiting for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["DeviceReadings", "HeadPace", "Reading"]

_SMOOTHING = 1 / 8
_STEP_MAX_MS = 500.0
"""A longer time between two steps is idleness."""


@dataclass(frozen=True)
class Reading:
    """Of one step: what ``draft_choice`` expects over the batch, and times where they were measured."""

    gain_tokens: float
    """Accepted tokens that the head would bring beyond the suffix drafts."""
    base_tokens: float
    """Emitted tokens without the head."""
    step_ms: float | None = None
    head_ms: float | None = None
    """None: the head did not run."""


class HeadPace:
    """Pure. The head pays while gain / base exceeds its time / the step's time without it."""

    run_steps_min = 32
    rest_steps_min = 16
    rest_steps_max = 2000
    """Then the head is tried again: what it is thought to bring may have changed unseen."""
    margin = 0.2

    def __init__(self) -> None:
        self.runs = True
        self._steps = 0
        self._gain_share: float | None = None
        self._head_ms: float | None = None
        self._rest_ms: float | None = None
        """Of a step without the head."""

    def observe(self, reading: Reading) -> None:
        if reading.base_tokens > 0:
            share = reading.gain_tokens / reading.base_tokens
            self._gain_share = _smoothed(self._gain_share, share)
        if reading.step_ms is None or reading.step_ms > _STEP_MAX_MS:
            return
        if reading.head_ms is not None:
            self._head_ms = _smoothed(self._head_ms, reading.head_ms)
        alone = reading.step_ms - (reading.head_ms or 0.0)
        if alone > 0:
            self._rest_ms = _smoothed(self._rest_ms, alone)

    def next_step(self) -> bool:
        """Whether the head runs in the step that begins now."""
        self._steps += 1
        if self._changes():
            self.runs = not self.runs
            self._steps = 0
        return self.runs

    def _changes(self) -> bool:
        if self._gain_share is None or self._head_ms is None or self._rest_ms is None:
            return not self.runs
        cost_share = self._head_ms / self._rest_ms
        if self.runs:
            return self._steps >= self.run_steps_min and self._gain_share < cost_share * (1 - self.margin)
        if self._steps >= self.rest_steps_max:
            return True
        return self._steps >= self.rest_steps_min and self._gain_share > cost_share * (1 + self.margin)


def _smoothed(before: float | None, value: float) -> float:
    return value if before is None else before + _SMOOTHING * (value - before)


class DeviceReadings:
    """One step in ``every`` is read: two floats and up to four times, copied beside the stream's work."""

    every = 4

    def __init__(self) -> None:
        self._steps = 0
        self._pending: deque[tuple[Any, ...]] = deque()
        self._start: Any = None
        self._head: tuple[Any, Any] | None = None
        self._before: Any = None

    def begin(self) -> None:
        """At the start of each step's drafting."""
        self._steps += 1
        now = self._steps % self.every
        self._head = None
        # A step's time is from the step before to this one.
        self._before = self._start if now == 0 else None
        self._start = _recorded() if now in (0, self.every - 1) else None

    @contextmanager
    def head(self) -> Iterator[None]:
        """Around the head's pass."""
        if self._before is None:
            yield
            return
        start = _recorded()
        yield
        self._head = start, _recorded()

    def end(self, gain: torch.Tensor) -> None:
        """gain float32[4] of DraftChoice, after the choice."""
        if self._before is not None:
            copied = torch.empty(4, dtype=torch.float32, pin_memory=True)
            copied.copy_(gain, non_blocking=True)
            self._pending.append((_recorded(), copied, self._before, self._start, self._head))

    def take(self) -> Iterator[Reading]:
        """Those that have arrived."""
        while self._pending and self._pending[0][0].query():
            _, copied, before, start, head = self._pending.popleft()
            gain, base = copied[:2].tolist()
            yield Reading(
                gain,
                base,
                before.elapsed_time(start),
                None if head is None else head[0].elapsed_time(head[1]),
            )


def _recorded() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
