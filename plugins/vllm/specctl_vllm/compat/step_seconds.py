"""Seconds of steps on the device, from the worker to the scheduler.

Patched is the class AsyncOutput that Model Runner V2 makes for a step. Reason: under asynchronous scheduling
the engine's process launches the next step before it takes the last one's tokens. A step with prompts takes
milliseconds to launch, and by the host's clock those would be counted to the step before it.

The runner makes it before it drafts. So from one step's tokens to the next one's, the device makes the drafts
that the later step verifies, and verifies them: their seconds are that step's without being measured. A head
of several passes begins with one that reads the tokens of the earlier step, whatever is drafted behind it:
that pass is reported apart, and counted with the earlier step.
"""

from __future__ import annotations

from typing import Any

from specctl_vllm.report import Failures

__all__ = ["device_seconds_of", "install", "read_seconds_of", "skip_first_pass", "watch_first_pass"]

_STEP, _READ = "specctl_step_s", "specctl_read_s"


class _Marks:
    """Events on the device, of one process."""

    def __init__(self) -> None:
        self.sampled: Any = None
        self.read: Any = None
        """Since then a first pass has ended."""
        self.has_first_passes = False


_marks = _Marks()


def device_seconds_of(model_runner_output: Any) -> float | None:
    """From the sampled tokens of the step before, or from the end of the first pass behind them, to those of
    this step; None for the first step, and from another worker. Idle time between is in it."""
    found: float | None = getattr(model_runner_output, _STEP, None)
    return found


def read_seconds_of(model_runner_output: Any) -> float | None:
    """Of the first pass behind the step before; None from a worker without such passes."""
    found: float | None = getattr(model_runner_output, _READ, None)
    return found


def install() -> None:
    """In a process that runs the model."""
    from vllm.v1.worker.gpu import model_runner

    model_runner.AsyncOutput = _timed(model_runner.AsyncOutput, _marks)


def watch_first_pass(speculator: Any) -> Any:
    """The same speculator, with the end of each first pass marked. vLLM calls this method there."""
    if not hasattr(speculator, "on_prefill_end"):
        return speculator
    original = speculator.on_prefill_end

    def on_prefill_end(num_reqs: int) -> None:
        original(num_reqs)
        _marks.read = _event()
        _marks.read.record()

    speculator.on_prefill_end = on_prefill_end
    _marks.has_first_passes = True
    return speculator


def skip_first_pass() -> None:
    """The last first pass came with work for the drafts behind it: it is left with them."""
    _marks.read = None


def _event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _timed(original: Any, marks: _Marks) -> Any:
    class TimedOutput(original):  # type: ignore[misc]
        def __init__(self, **values: Any) -> None:
            main, copies = values["main_stream"], values["copy_stream"]
            self.specctl_before = marks.sampled, marks.read
            sampled = _event()
            copies.wait_stream(main)
            # Past when the event of the original's own copies is, which follow on the same stream.
            sampled.record(copies)
            self.specctl_sampled = marks.sampled = sampled
            marks.read = None
            super().__init__(**values)

        def get_output(self) -> Any:
            output = super().get_output()
            Failures.tell(output)
            (before, read), self.specctl_before = self.specctl_before, (None, None)
            if before is None:
                return output
            since = before if read is None else read
            setattr(output, _STEP, since.elapsed_time(self.specctl_sampled) / 1e3)
            if marks.has_first_passes:
                setattr(output, _READ, 0.0 if read is None else before.elapsed_time(read) / 1e3)
            return output

    return TimedOutput
