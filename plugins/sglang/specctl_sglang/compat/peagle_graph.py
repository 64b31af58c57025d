"""A P-EAGLE head's pass in CUDA graphs where SGLang leaves it eager: with attention backends, fa3 among them,
that it does not list for draft-extend, though they can refresh what a captured pass reads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.runner_backend.full_cuda_graph_backend import FullCudaGraphBackend
from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import EAGLEDraftExtendCudaGraphRunner
from specctl_kernels.peagle_rows import PassBuffers, PassRows

__all__ = ["PassGraphs", "captured_pass"]

logger = logging.getLogger("sglang.specctl")


class PassGraphs(EAGLEDraftExtendCudaGraphRunner):
    """For backends whose ``draft_extend_metadata_captured_in_graph`` is true: rows are laid out where a graph
    reads them, and nothing is made for its metadata before a replay."""

    def holds(self, requests: int, hidden: torch.Tensor) -> bool:
        """Whether a batch can be laid out in the graphs' memory; hidden: [.., H], the target's states."""
        states = self.buffers.hidden_states
        return (
            isinstance(self.backend, FullCudaGraphBackend)
            and not (self.require_gathered_buffer or self.require_mlp_sync or self.require_mlp_tp_gather)
            and not self.model_runner.model_config.model_is_mrope
            and states is not None
            and states.shape[1] == hidden.shape[-1]
            and (requests in self.capture_bs if self.disable_padding else requests <= self.max_bs)
        )

    def replayed(
        self, requests: int, lay_out: Callable[[PassBuffers], PassRows]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Drafts int64[n, K] and the last states of the rows laid out. For a batch that it ``holds``."""
        size = self._pad_to_bucket(requests, self.capture_bs)
        made = lay_out(self._buffers_of(size))
        # As in SGLang's execute: what the scheduler writes next waits for the last step that reads it.
        read_done = self.device_module.Event()
        read_done.record()
        self.model_runner.shared_read_done_event = read_done
        self.raw_bs, self.bs = requests, size
        drafts: torch.Tensor = self.backend.replay(self._make_graph_key(size), None).next_token_logits
        # The graph's own memory, which the next pass writes over.
        return drafts[:requests].clone(), made.last_hidden

    def _buffers_of(self, size: int) -> PassBuffers:
        buffers, rows = self.buffers, size * self.captured_req_width
        return PassBuffers(
            ids=buffers.input_ids[:rows],
            hidden=buffers.hidden_states[:rows],
            slots=buffers.out_cache_loc[:rows],
            first=buffers.select_index[:size],
            positions=buffers.positions[:rows],
            lengths=buffers.seq_lens[:size],
            row_counts=buffers.extend_seq_lens[:size],
            requests=buffers.req_pool_indices[:size],
            padding_length=self.seq_len_fill_value,
        )


def captured_pass(drafter: Any) -> PassGraphs | None:
    """None where the drafter's backend cannot be captured, or the user wants no graphs."""
    backend = drafter.draft_extend_attn_backend
    if (
        not torch.cuda.is_available()
        or check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED)
        or envs.SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH.get()
        or backend is None
        or not backend.draft_extend_metadata_captured_in_graph()
    ):
        return None
    try:
        return PassGraphs(drafter)
    except Exception:
        logger.exception("specctl: the head's pass cannot be captured; it runs without a graph")
        return None
