"""What the scheduler's part asks of every worker that a table steers."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

from specctl.contract.telemetry import ShadowAcceptance
from specctl.engine.guard import GUARD
from specctl_sglang.compat.verification import is_verified_by_ours
from specctl_sglang.control.draft_limits import penalty_limits, why_batch_rests
from specctl_sglang.control.steering import OpenStep, Steering
from specctl_sglang.terms import OFF, Shape, width_of, widths_by_tree

__all__ = ["Steered", "current_step", "limits_of", "start_guarded"]


class Steered:
    """A base beside one of SGLang's workers."""

    specctl: Steering | None = None
    """Set by compat.scheduler once the scheduler is there; None while it starts."""
    host_relay: Any = None
    at_start: Shape | None = None
    """Of the server's own start; None: a chain of the largest number."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Prepared ones, which a table may name."""
        raise NotImplementedError

    @cached_property
    def _widths(self) -> dict[tuple[int, int], int]:
        return widths_by_tree(self.shapes)

    def shape_of(self, step: OpenStep) -> Shape:
        """As the table says; where it names no width, the usual one of its depth and branches."""
        tree = step.num_speculative_tokens, step.tree_topk
        return *tree, step.verify_width_tokens or self._widths.get(tree, width_of(tree[0]))

    def before_launch(self, batch: Any) -> None:
        """A batch is about to be launched, and the scheduler's stream is the current one."""

    def launched(self, batch: Any, result: Any) -> None:
        """A batch was launched, and the copies of its result to the host with it."""

    def shadow_counts(self) -> ShadowAcceptance | None:
        return None

    def stats(self) -> dict[str, float]:
        return {}


def current_step(steering: Steering | None, batch: Any, at_start: Shape) -> OpenStep:
    """What the table says of a decode batch; what the server was started with where nothing is steered."""
    step = None if steering is None else steering.current
    if step is None or GUARD.is_resting:
        step = step or OpenStep(started_s=time.monotonic(), requests=list(batch.reqs))
        # Without a word of the table for this step, which is a failure's doing, nothing is drafted.
        step.take(at_start if steering is None else OFF)
        step.is_sampled = False
    return step


def start_guarded(step: OpenStep, batch: Any, device: str) -> None:
    """Nothing is drafted for a batch whose drafts SGLang would verify wrongly."""
    why = why_batch_rests(batch.sampling_info, device, lambda: is_verified_by_ours(batch))
    step.is_guarded = why is not None
    if step.is_guarded:
        step.take(OFF)
        step.is_sampled = False


def limits_of(steering: Steering | None, number: int, batch: Any) -> list[int] | None:
    """Most drafts of each request of a decode batch; None: ``number`` for all."""
    if number == 0:
        return None
    if steering is None:
        return penalty_limits(batch.reqs, batch.sampling_info, number)
    return steering.limits_of(batch.reqs, batch.sampling_info, number)
