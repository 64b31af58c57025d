"""What the worker tells the scheduler after each step; travels on vLLM's DraftTokenIds."""

from __future__ import annotations

from dataclasses import dataclass

from specctl.contract.telemetry import ShadowAcceptance

__all__ = ["WorkerReport"]


@dataclass(frozen=True, slots=True)
class WorkerReport:
    draft_s: float
    """Of the drafts for the next step."""
    verify_s: float
    shadow: ShadowAcceptance | None
    """None: the method has no shadow, or nothing new since the last report."""
    proposer: dict[str, float] | None
    """None: nothing new since the last report."""
