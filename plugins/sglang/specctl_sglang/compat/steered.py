"""What the scheduler's part asks of every worker that a table steers."""

from __future__ import annotations

import time
from typing import Any

from specctl.contract.telemetry import ShadowAcceptance
from specctl_sglang.control.steering import OpenStep, Steering

__all__ = ["Steered", "current_step", "start_guarded"]


class Steered:
    """A base beside one of SGLang's workers."""

    specctl: Steering | None = None
    """Set by compat.scheduler once the scheduler is there; None while it starts."""
    host_relay: Any = None
    tree_topks: tuple[int, ...] = (1,)
    """Branches a depth that a table may name; empty: every number up to the method's own bound."""
    at_start: tuple[int, int] | None = None
    """num_speculative_tokens and tree_topk of the server's own start; None: a chain of the largest number."""

    @property
    def prepared(self) -> tuple[int, ...]:
        """Numbers of drafts that a table may name."""
        raise NotImplementedError

    def before_launch(self, batch: Any) -> None:
        """A batch is about to be launched, and the scheduler's stream is the current one."""

    def launched(self, batch: Any, result: Any) -> None:
        """A batch was launched, and the copies of its result to the host with it."""

    def shadow_counts(self) -> ShadowAcceptance | None:
        return None

    def stats(self) -> dict[str, float]:
        return {}


def current_step(steering: Steering | None, batch: Any, at_start: tuple[int, int]) -> OpenStep:
    """What the table says of a decode batch; what the server was started with where nothing is steered."""
    step = None if steering is None or not steering.is_active else steering.current
    if step is None:
        drafts, branches = at_start
        requests = list(batch.reqs)
        step = OpenStep(drafts, branches, time.monotonic(), requests, [drafts] * len(requests))
    return step


def start_guarded(step: OpenStep, batch: Any, device: str) -> None:
    """On a CPU SGLang verifies by the target's most probable token, which is wrong for a sampled request:
    nothing is drafted for a batch with one."""
    step.is_guarded = device == "cpu" and not batch.sampling_info.is_all_greedy
    if step.is_guarded:
        step.num_speculative_tokens = 0
