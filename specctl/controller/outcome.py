"""What came of a change: tokens per second of step time, measured where the change took effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specctl.controller.audit import AuditLog
from specctl.types import BucketChoice, Decision, Observation

__all__ = ["Outcomes"]

WINDOW_MIN_S = 3.0


class Outcomes:
    """Of one target, to the audit log: the last change that was felt, one at a time."""

    def __init__(self, target: str, audit: AuditLog) -> None:
        self._target = target
        self._audit = audit
        self._pending: _Pending | None = None

    def follow(self, decision: Decision, version: int, dwell_s: float) -> None:
        """What comes of this change from now on; of the one before, what came of it so far."""
        pending = _pending(decision, version, dwell_s)
        if pending is not None:
            self._write()
            self._pending = pending

    def collect(self, observation: Observation) -> None:
        if self._pending is None:
            return
        self._pending.add(observation)
        if observation.time_s >= self._pending.due_s:
            self._write()

    def _write(self) -> None:
        if self._pending is not None and self._pending.step_s > 0:
            self._audit.write("outcome", self._target, self._pending.record())
        self._pending = None


@dataclass(slots=True)
class _Pending:
    """Collects until ``due_s`` (the clock's time)."""

    choice: BucketChoice
    version: int
    due_s: float
    emitted_tokens: int = 0
    step_s: float = 0.0

    def add(self, observation: Observation) -> None:
        for cell in observation.cells or ():
            is_here = cell.decode_batch_to == self.choice.decode_batch_to and not cell.has_prefill
            if is_here and cell.num_speculative_tokens == self.choice.num_speculative_tokens:
                self.emitted_tokens += cell.emitted_tokens
                self.step_s += cell.step_s

    def record(self) -> dict[str, Any]:
        rate = round(self.emitted_tokens / self.step_s, 3) if self.step_s > 0 else None
        predicted = self.choice.predicted_tokens_per_s
        return {
            "version": self.version,
            "decode_batch": f"{self.choice.decode_batch_from}-{self.choice.decode_batch_to}",
            "num_speculative_tokens": self.choice.num_speculative_tokens,
            "predicted_tokens_per_s": None if predicted is None else round(predicted, 3),
            "measured_tokens_per_s": rate,
        }


def _pending(decision: Decision, version: int, dwell_s: float) -> _Pending | None:
    """For the busy bucket that changed; None when only idle buckets did."""
    choice = next((c for c in decision.changed if c.is_active), None)
    if choice is None:
        return None
    return _Pending(choice, version, decision.time_s + max(dwell_s, WINDOW_MIN_S))
