"""What the worker tells the scheduler after each step; travels on vLLM's DraftTokenIds."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from specctl.contract.telemetry import ShadowAcceptance
from specctl.engine.guard import GUARD

__all__ = ["DraftWish", "Failures", "WorkerReport"]


@dataclass(frozen=True, slots=True)
class Failures:
    """Of one worker's guard, by entry."""

    process_id: int
    counts: Counter[str]

    @classmethod
    def here(cls) -> Failures | None:
        """None: there are none."""
        return cls(os.getpid(), Counter(GUARD.failures)) if GUARD.failures else None

    def elsewhere(self) -> Counter[str]:
        """Empty where the worker is in this process: its guard counts them itself."""
        return Counter() if self.process_id == os.getpid() else self.counts


@dataclass(frozen=True, slots=True)
class DraftWish:
    """How many drafts a rank wants at the end of a step, where ranks run every step together."""

    num_speculative_tokens: int
    decode_batch: int
    is_sample: bool


@dataclass(frozen=True, slots=True)
class WorkerReport:
    draft_s: float
    """Of the drafts for the next step."""
    verify_s: float
    shadow: ShadowAcceptance | None
    """None: the method has no shadow, or nothing new since the last report."""
    proposer: dict[str, float] | None
    """None: nothing new since the last report."""
    failures: Failures | None = None
    agreed: DraftWish | None = None
    """What all ranks drafted by; None: this rank drafts on its own."""
