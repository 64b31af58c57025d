"""Method specctl_hybrid on Model Runner V2: suffix drafts where they promise more, a P-EAGLE head elsewhere.

Each request's choice is made on the device (specctl_kernels.draft_choice). Whether the head runs at all is
the host's, from what the device reported some steps ago: nothing waits. While it rests, requests without a
suffix draft get none, and the last states are kept for its return.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from specctl_kernels.draft_choice import DraftChoice, draft_choice

from specctl_vllm.compat.head_states import HeadStep
from specctl_vllm.compat.peagle_device import PEagleSpeculator
from specctl_vllm.compat.suffix_source import DeviceSuffixSource
from specctl_vllm.proposers.head_pace import DeviceReadings, HeadPace

__all__ = ["HybridSpeculator"]


class HybridSpeculator(PEagleSpeculator):
    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        super().__init__(vllm_config, device)
        self._suffix = DeviceSuffixSource(vllm_config, device, req_states)
        self._choice = DraftChoice(self.max_num_reqs, self.num_speculative_steps, device)
        self._readings = DeviceReadings()
        # Ranks that read their own clocks would disagree, and the head's pass is a collective one.
        is_alone = vllm_config.parallel_config.tensor_parallel_size == 1
        self._pace = HeadPace() if is_alone else None

    def note_step(self, scheduler_output: Any) -> None:
        super().note_step(scheduler_output)
        self._suffix.note_step(scheduler_output)

    def isolate(self, request_ids: Iterable[str]) -> None:
        self._suffix.isolate(request_ids)

    def capture(self) -> None:
        super().capture()
        self._suffix.compile()
        self.idx_mapping.fill_(-1)
        self._choose(
            1, torch.zeros(1, dtype=torch.int32, device=self.device), self._rows.starts[:2], 1, False
        )

    def _make_drafts(self, step: HeadStep, wanted: int, is_dummy: bool, is_profile: bool) -> None:
        if wanted == 0 or is_dummy:
            super()._make_drafts(step, wanted, is_dummy, is_profile)
            return
        requests = step.batch.num_reqs
        self._readings.begin()
        self._suffix.find(self.idx_mapping[:requests], step.num_sampled, wanted)
        has_head = self._runs_head()
        if has_head:
            with self._readings.head():
                self._draft_step(step, wanted, is_profile)
        else:
            self._rest(step)
        starts = step.batch.query_start_loc[: requests + 1]
        self._choose(requests, step.num_sampled, starts, wanted, has_head)
        self._readings.end(self._choice.gain)

    def _runs_head(self) -> bool:
        if self._pace is None:
            return True
        for reading in self._readings.take():
            self._pace.observe(reading)
        return self._pace.next_step()

    def _choose(
        self, requests: int, num_sampled: torch.Tensor, starts: torch.Tensor, wanted: int, has_head: bool
    ) -> None:
        suffix = self._suffix
        draft_choice(
            self._choice, self.draft_tokens[:requests], suffix.drafts[:requests], suffix.probs[:requests],
            suffix.counts[:requests], self.idx_mapping[:requests], num_sampled, starts, wanted=wanted,
            has_head=has_head,
        )  # fmt: skip
