"""How many drafts of each request were rejected, from the worker to the scheduler.

Patched is the class AsyncOutput that Model Runner V2 makes for a step. Reason: with adaptive verification the
device decides how many of a request's drafts are verified, and the scheduler only learns how many were kept;
its telemetry would take those that nobody looked at for rejected ones.
"""

from __future__ import annotations

from typing import Any

__all__ = ["install", "rejected_of"]

_ATTRIBUTE = "specctl_rejected"


def rejected_of(model_runner_output: Any) -> list[int] | None:
    """One number for each request of the step; None from a worker that does not tell."""
    found: list[int] | None = getattr(model_runner_output, _ATTRIBUTE, None)
    return found


def install() -> None:
    """In a process that runs the model."""
    from vllm.v1.worker.gpu import model_runner

    model_runner.AsyncOutput = _telling(model_runner.AsyncOutput)


def _telling(original: Any) -> Any:
    from vllm.v1.worker.gpu.async_utils import async_copy_to_np, stream

    class TellingOutput(original):  # type: ignore[misc]
        def __init__(self, **values: Any) -> None:
            main, copies = values["main_stream"], values["copy_stream"]
            with stream(copies, main):
                copies.wait_stream(main)
                # Arrived when the event of the original's own copies has, which follow on the same stream.
                self.specctl_rejected = async_copy_to_np(values["sampler_output"].num_rejected)
            super().__init__(**values)

        def get_output(self) -> Any:
            output = super().get_output()
            setattr(output, _ATTRIBUTE, self.specctl_rejected.tolist())
            return output

    return TellingOutput
