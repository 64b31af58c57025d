"""Method specctl_suffix on Model Runner V2. vLLM takes it for its own ``ngram_gpu``."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from specctl_vllm.proposers.suffix_source import DeviceSuffixSource

__all__ = ["DeviceSuffixSpeculator"]


class DeviceSuffixSpeculator(BaseSpeculator):  # type: ignore[misc]
    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        self.num_speculative_steps: int = vllm_config.speculative_config.num_speculative_tokens
        self._source = DeviceSuffixSource(vllm_config, device, req_states)

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """One launch without a model: there is nothing to capture."""

    def capture(self) -> None:
        self._source.compile()

    def note_step(self, scheduler_output: Any) -> None:
        """Called before each step, with what the scheduler sends along."""
        self._source.note_step(scheduler_output)

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: torch.Tensor,
        aux_hidden_states: Any,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        next_prefill_tokens: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> torch.Tensor:
        """int64[num_reqs, num_speculative_tokens_max]; a place without a draft holds an id that exists."""
        wanted = self.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
        if not dummy_run and wanted > 0:
            self._source.find(input_batch.idx_mapping, num_sampled, wanted)
        return self._source.drafts[: input_batch.num_reqs]
