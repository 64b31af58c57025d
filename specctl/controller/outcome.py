"""What came of a change: tokens per second of step time, measured where the change took effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specctl.types import BucketChoice, Decision, Observation

__all__ = ["PendingOutcome", "pending_outcome"]

WINDOW_MIN_S = 3.0


@dataclass(slots=True)
class PendingOutcome:
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


def pending_outcome(decision: Decision, version: int, dwell_s: float) -> PendingOutcome | None:
    """For the busy bucket that changed; None when only idle buckets did."""
    choice = next((c for c in decision.changed if c.is_active), None)
    if choice is None:
        return None
    return PendingOutcome(choice, version, decision.time_s + max(dwell_s, WINDOW_MIN_S))
