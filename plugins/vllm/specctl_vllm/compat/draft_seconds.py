"""Seconds of making drafts on the V1 model runner, reported to the scheduler.

A head's first pass reads the tokens that the step has verified, whatever is drafted behind it: its seconds
are that step's own. Those of the passes behind it belong to the step that verifies the drafts.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from specctl.engine.guard import GUARD
from specctl_vllm.compat.step_report import StepReport
from specctl_vllm.report import Failures

__all__ = ["DraftClock", "report_with", "watch_first_pass"]


class DraftClock:
    """Of one step: marks at the begin of drafting, after a head's first pass, and at the end."""

    def __init__(self, is_on_device: bool) -> None:
        self._is_on_device = is_on_device
        self._marks: list[tuple[float, Any]] = []

    def mark(self) -> None:
        event = None
        if self._is_on_device:
            # The host is done with launching long before the device is with drafting.
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self._marks.append((time.perf_counter(), event))

    def first_pass_ended(self) -> None:
        if len(self._marks) == 1:
            self.mark()

    def whole_s(self) -> float:
        """By the host's clock, the first pass with it."""
        return self._marks[-1][0] - self._marks[0][0] if self._marks else 0.0

    def seconds(self, *, with_first_pass: bool = False) -> float:
        """On a device once its part of the step has ended."""
        if len(self._marks) < 2:
            return 0.0
        began_s, began = self._marks[0 if with_first_pass else -2]
        ended_s, ended = self._marks[-1]
        if ended is not None and ended.query():
            device_s: float = began.elapsed_time(ended) / 1e3
            return device_s
        return ended_s - began_s


def watch_first_pass(runner: Any) -> None:
    """Mark the first pass on the runner's clock, unless the head makes all drafts in it."""
    model = getattr(getattr(runner, "drafter", None), "model", None)
    is_watched = getattr(runner, "specctl_is_watched", False)
    if is_watched or not isinstance(model, torch.nn.Module) or runner.speculative_config.parallel_drafting:
        return
    runner.specctl_is_watched = True
    model.register_forward_hook(lambda *_: _first_pass_ended(runner))


def _first_pass_ended(runner: Any) -> None:
    resting = getattr(runner, "specctl_resting_head", None)
    if resting is None or not resting.catches_up:
        runner.specctl_clock.first_pass_ended()


def report_with(output: Any, clock: DraftClock) -> None:
    """Under asynchronous scheduling, with a step's tokens, which come after its drafts."""
    get_output = output.get_output

    def get_output_and_report() -> Any:
        found = get_output()
        draft_s = GUARD.call("clock.seconds", 0.0, clock.seconds)
        found.specctl = StepReport(Failures.here(), draft_s=draft_s)
        return found

    output.get_output = get_output_and_report
