"""Method specctl_suffix on Model Runner V2. vLLM takes it for its own ``ngram_gpu``.

With vLLM's option ``enable_adaptive_verification`` the engine verifies, of all requests' drafts, as many of
the likeliest as pay by its own measurement of a step; the index's calibrated chances say which those are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from specctl_vllm.compat.suffix_source import DeviceSuffixSource
from specctl_vllm.proposers.confidence import confidences

__all__ = ["DeviceSuffixSpeculator"]


class DeviceSuffixSpeculator(BaseSpeculator):
    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        speculative = vllm_config.speculative_config
        self.num_speculative_steps: int = speculative.num_speculative_tokens
        self.enable_adaptive_verification: bool = speculative.enable_adaptive_verification
        requests = vllm_config.scheduler_config.max_num_seqs
        self.draft_token_confidence_probs = torch.zeros(
            (requests, self.num_speculative_steps), dtype=torch.float32, device=device
        )
        """Read by the engine after each call, row by row of the batch."""
        self._source = DeviceSuffixSource(vllm_config, device, req_states)

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """One launch without a model: there is nothing to capture."""

    def capture(self) -> None:
        self._source.compile()

    def note_step(self, scheduler_output: Any) -> None:
        """Called before each step, with what the scheduler sends along."""
        self._source.note_step(scheduler_output)

    def isolate(self, request_ids: Iterable[str]) -> None:
        self._source.isolate(request_ids)

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
        source, requests = self._source, input_batch.num_reqs
        if not dummy_run and wanted > 0:
            source.find(input_batch.idx_mapping, num_sampled, wanted)
            if self.enable_adaptive_verification:
                self.draft_token_confidence_probs[:requests] = confidences(
                    source.probs[:requests], source.counts[:requests]
                )
        return source.drafts[:requests]
