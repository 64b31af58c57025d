"""Seconds between the ends of two steps on the device, from the worker to the scheduler.

Patched is the class AsyncOutput that Model Runner V2 makes for a step. Reason: under asynchronous scheduling
the engine's process launches the next step before it takes the last one's tokens. A step with prompts takes
milliseconds to launch, and by the host's clock those would be counted to the step before it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["device_seconds_of", "install"]

_ATTRIBUTE = "specctl_step_s"


def device_seconds_of(model_runner_output: Any) -> float | None:
    """From the sampled tokens of the step before to those of this one; None for the first step, and from a
    worker that does not tell. Idle time between the two is in it."""
    found: float | None = getattr(model_runner_output, _ATTRIBUTE, None)
    return found


def install() -> None:
    """In a process that runs the model."""
    from vllm.v1.worker.gpu import model_runner

    model_runner.AsyncOutput = _timed(model_runner.AsyncOutput)


def _timed(original: Any) -> Any:
    import torch

    class TimedOutput(original):  # type: ignore[misc]
        specctl_latest: Any = None

        def __init__(self, **values: Any) -> None:
            main, copies = values["main_stream"], values["copy_stream"]
            self.specctl_before = TimedOutput.specctl_latest
            sampled = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            copies.wait_stream(main)
            # Past when the event of the original's own copies is, which follow on the same stream.
            sampled.record(copies)
            self.specctl_sampled = TimedOutput.specctl_latest = sampled
            super().__init__(**values)

        def get_output(self) -> Any:
            output = super().get_output()
            before, self.specctl_before = self.specctl_before, None
            if before is not None:
                setattr(output, _ATTRIBUTE, before.elapsed_time(self.specctl_sampled) / 1e3)
            return output

    return TimedOutput
