"""Method specctl_hybrid on Model Runner V2: suffix drafts where they promise more, a draft head elsewhere.

Each request's choice is made on the device (specctl_kernels.draft_choice). Whether the head runs at all is
the host's, from what the device reported some steps ago: nothing waits. While it rests, requests without a
suffix draft get none, and the head sees the step as one of 0 drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from specctl_kernels.draft_choice import DraftChoice, draft_choice
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import TargetDependentARSpeculator

from specctl_vllm.compat.head_states import HeadStep
from specctl_vllm.compat.peagle_device import PEagleSpeculator
from specctl_vllm.compat.suffix_source import DeviceSuffixSource
from specctl_vllm.proposers.head_pace import DeviceReadings, HeadPace

__all__ = ["HybridSpeculator", "SuffixBeside", "with_suffix"]

_NUM_SAMPLED = 4
"""Its place among the arguments behind ``input_batch`` that vLLM's runner gives to ``propose``."""


class SuffixBeside:
    """Suffix drafts beside those of a head, in the steps of one speculator of vLLM's.

    may_rest: the head can leave steps out, and its pass is no collective one; ranks that read their own
    clocks would disagree.
    """

    def __init__(self, head: Any, vllm_config: Any, req_states: Any, *, may_rest: bool) -> None:
        self._suffix = DeviceSuffixSource(vllm_config, head.device, req_states)
        self._choice = DraftChoice(head.max_num_reqs, head.num_speculative_steps, head.device)
        self._readings = DeviceReadings()
        is_alone = vllm_config.parallel_config.tensor_parallel_size == 1
        self._pace = HeadPace() if may_rest and is_alone else None

    def note_step(self, scheduler_output: Any) -> None:
        self._suffix.note_step(scheduler_output)

    def isolate(self, request_ids: Iterable[str]) -> None:
        self._suffix.isolate(request_ids)

    def compile(self, drafts: torch.Tensor) -> None:
        """So that no step has to: a choice for a request that is nobody's."""
        self._suffix.compile()
        starts = torch.arange(2, dtype=torch.int32, device=drafts.device)
        self._choose(drafts[:1], starts[:1].long() - 1, starts[:1], starts, 1, False)

    def draft(
        self,
        drafts: torch.Tensor,
        batch: Any,
        num_sampled: torch.Tensor,
        wanted: int,
        run_head: Callable[[bool], object],
    ) -> None:
        """Of one step: drafts int64[n, K] in and out; num_sampled int32[n].

        run_head: called once, with whether the head drafts or rests; what it drafts is in ``drafts`` then.
        """
        requests = batch.num_reqs
        slots = batch.idx_mapping[:requests]
        self._readings.begin()
        self._suffix.find(slots, num_sampled, wanted)
        has_head = self._runs_head()
        if has_head:
            with self._readings.head():
                run_head(True)
        else:
            run_head(False)
        self._choose(drafts, slots, num_sampled, batch.query_start_loc[: requests + 1], wanted, has_head)
        self._readings.end(self._choice.gain)

    def _runs_head(self) -> bool:
        if self._pace is None:
            return True
        for reading in self._readings.take():
            self._pace.observe(reading)
        return self._pace.next_step()

    def _choose(
        self,
        drafts: torch.Tensor,
        slots: torch.Tensor,
        num_sampled: torch.Tensor,
        starts: torch.Tensor,
        wanted: int,
        has_head: bool,
    ) -> None:
        suffix, requests = self._suffix, slots.shape[0]
        draft_choice(
            self._choice, drafts, suffix.drafts[:requests], suffix.probs[:requests],
            suffix.counts[:requests], slots, num_sampled, starts, wanted=wanted, has_head=has_head,
        )  # fmt: skip


class HybridSpeculator(PEagleSpeculator):
    """With a P-EAGLE head."""

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        super().__init__(vllm_config, device)
        self._beside = SuffixBeside(self, vllm_config, req_states, may_rest=True)

    def note_step(self, scheduler_output: Any) -> None:
        super().note_step(scheduler_output)
        self._beside.note_step(scheduler_output)

    def isolate(self, request_ids: Iterable[str]) -> None:
        self._beside.isolate(request_ids)

    def capture(self) -> None:
        super().capture()
        self._beside.compile(self.draft_tokens)

    def _make_drafts(self, step: HeadStep, wanted: int, is_dummy: bool, is_profile: bool) -> None:
        if wanted == 0 or is_dummy:
            super()._make_drafts(step, wanted, is_dummy, is_profile)
            return

        def run_head(drafts: bool) -> None:
            super(HybridSpeculator, self)._make_drafts(step, wanted if drafts else 0, is_dummy, is_profile)

        drafts = self.draft_tokens[: step.batch.num_reqs]
        self._beside.draft(drafts, step.batch, step.num_sampled, wanted, run_head)


def with_suffix(head: Any, vllm_config: Any, req_states: Any) -> Any:
    """The same speculator of vLLM's, with suffix drafts beside its own. Draft models and MTP layers of
    several modules draft as many as ever where none are wanted: they run in each step."""
    shares_steps = vllm_config.parallel_config.data_parallel_size > 1
    may_rest = isinstance(head, TargetDependentARSpeculator) and not shares_steps
    beside = SuffixBeside(head, vllm_config, req_states, may_rest=may_rest)
    propose, capture = head.propose, head.capture

    def proposed(
        input_batch: Any, *args: Any, num_speculative_tokens: int | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """int64[num_reqs, num_speculative_tokens_max], as in vLLM."""
        wanted = num_speculative_tokens
        if not wanted or kwargs.get("dummy_run"):
            found: torch.Tensor = propose(input_batch, *args, num_speculative_tokens=wanted, **kwargs)
            return found

        has_run = False

        def run_head(drafts: bool) -> None:
            nonlocal has_run
            has_run = True
            propose(input_batch, *args, num_speculative_tokens=wanted if drafts else 0, **kwargs)

        drafts: torch.Tensor = head.draft_tokens[: input_batch.num_reqs]
        try:
            beside.draft(drafts, input_batch, args[_NUM_SAMPLED], wanted, run_head)
        finally:
            # Other ranks wait for its passes, whatever of ours has failed.
            if shares_steps and not has_run:
                run_head(True)
        return drafts

    def captured() -> None:
        capture()
        beside.compile(head.draft_tokens)

    head.propose, head.capture = proposed, captured
    head.note_step, head.isolate = beside.note_step, beside.isolate
    return head
