"""What a worker reports with a step's tokens, and how it gets there on Model Runner V2.

Under asynchronous scheduling the engine's process launches the next step before it takes the last one's
tokens. A step with prompts takes milliseconds to launch, and by the host's clock those would be counted to
the step before it: so a step's seconds are taken on the device.

The runner makes a step's AsyncOutput before it drafts. So from one step's tokens to the next one's, the
device makes the drafts that the later step verifies, and verifies them: their seconds are that step's without
being measured. A head of several passes begins with one that reads the tokens of the earlier step, whatever
is drafted behind it: that pass is reported apart, and counted with the earlier step.

With adaptive verification the device decides how many of a request's drafts are verified, and the scheduler
only learns how many were kept; so the rejected ones are copied to the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specctl.engine.guard import GUARD
from specctl_vllm.compat import verified_batches
from specctl_vllm.compat.rank_agreement import AGREEMENT
from specctl_vllm.report import DraftWish, Failures

__all__ = [
    "StepReport",
    "report_of",
    "skip_first_pass",
    "tell_rejected",
    "watch_first_pass",
    "wrap_async_output",
]


@dataclass(frozen=True, slots=True)
class StepReport:
    """Of one step, or as things stand at its end; None where a worker does not report it."""

    failures: Failures | None = None
    draft_s: float | None = None
    """Of the drafts for the next step. V1 under asynchronous scheduling."""
    step_s: float | None = None
    """From the sampled tokens of the step before, or from the end of the first pass behind them, to those of
    this step; None for the first step. Idle time between is in it."""
    read_s: float | None = None
    """Of the first pass behind the step before; None from a worker without such passes."""
    verified_batches: dict[str, float] | None = None
    rejected: list[int] | None = None
    """Drafts of each request of the step."""
    agreed: DraftWish | None = None
    """For a later step: what data-parallel ranks that step together want; None: this rank runs on its own."""
    most_planned: int | None = None
    """Drafts that were made at the end of this step, on all such ranks."""


NOTHING = StepReport()


def report_of(model_runner_output: Any) -> StepReport:
    found: StepReport = getattr(model_runner_output, "specctl", NOTHING)
    return found


class _Marks:
    """Events on the device, of one process."""

    def __init__(self) -> None:
        self.sampled: Any = None
        self.read: Any = None
        """Since then a first pass has ended."""
        self.has_first_passes = False
        self.has_rejected = False


_marks = _Marks()


def tell_rejected(is_wanted: bool) -> None:
    """Whether this worker reports rejected drafts."""
    _marks.has_rejected = is_wanted


def watch_first_pass(speculator: Any) -> Any:
    """The same speculator, with the end of each first pass marked. vLLM calls this method there."""
    if not hasattr(speculator, "on_prefill_end"):
        return speculator
    original = speculator.on_prefill_end

    def on_prefill_end(num_reqs: int) -> None:
        original(num_reqs)
        GUARD.call("on_prefill_end", None, _first_pass_ended)

    speculator.on_prefill_end = on_prefill_end
    _marks.has_first_passes = True
    return speculator


def skip_first_pass() -> None:
    """The last first pass came with work for the drafts behind it: it is left with them."""
    _marks.read = None


def _first_pass_ended() -> None:
    _marks.read = _event()
    _marks.read.record()


def _event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A step whose tokens are on their way to the host."""

    sampled: Any
    before: Any
    """The mark of the step before; None: this is the first."""
    read: Any
    rejected: Any
    """int array; None where it is not wanted."""
    agreed: DraftWish | None
    most_planned: int | None

    @classmethod
    def of(cls, values: dict[str, Any]) -> _Begun:
        """Everything goes on the stream of the original's own copies, which follow: it has come when they
        have."""
        main, copies = values["main_stream"], values["copy_stream"]
        rejected = _rejected(values["sampler_output"], main, copies) if _marks.has_rejected else None
        sampled = _event()
        copies.wait_stream(main)
        sampled.record(copies)
        agreed = AGREEMENT.agreed, AGREEMENT.most_planned
        begun = cls(sampled, _marks.sampled, _marks.read, rejected, *agreed)
        _marks.sampled, _marks.read = sampled, None
        return begun

    def report(self) -> StepReport:
        step_s = read_s = None
        if self.before is not None:
            since = self.before if self.read is None else self.read
            step_s = since.elapsed_time(self.sampled) / 1e3
            if _marks.has_first_passes:
                read_s = 0.0 if self.read is None else self.before.elapsed_time(self.read) / 1e3
        return StepReport(
            Failures.here(),
            step_s=step_s,
            read_s=read_s,
            verified_batches=verified_batches.snapshot() or None,
            rejected=None if self.rejected is None else self.rejected.tolist(),
            agreed=self.agreed,
            most_planned=self.most_planned,
        )


def _rejected(sampler_output: Any, main: Any, copies: Any) -> Any:
    from vllm.v1.worker.gpu.async_utils import async_copy_to_np, stream

    with stream(copies, main):
        copies.wait_stream(main)
        return async_copy_to_np(sampler_output.num_rejected)


def wrap_async_output(original: Any) -> Any:
    class ReportingOutput(original):
        def __init__(self, **values: Any) -> None:
            self.specctl_begun = GUARD.call("AsyncOutput", None, _Begun.of, values)
            super().__init__(**values)

        def get_output(self) -> Any:
            output = super().get_output()
            begun, self.specctl_begun = self.specctl_begun, None
            report = None if begun is None else GUARD.call("AsyncOutput.get_output", None, begun.report)
            output.specctl = report or StepReport(Failures.here())
            return output

    return ReportingOutput
