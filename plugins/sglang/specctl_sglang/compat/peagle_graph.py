"""A P-EAGLE head's pass in CUDA graphs where SGLang leaves it eager: with attention backends, fa3 among them,
that it does not list for draft-extend, though they can refresh what a captured pass reads."""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import EAGLEDraftExtendCudaGraphRunner

__all__ = ["PassGraphs", "captured_pass"]

logger = logging.getLogger("sglang.specctl")


class _RefreshedInGraph:
    """In the place of an attention backend while a pass is replayed that refreshes its metadata itself."""

    def init_forward_metadata_out_graph(self, *_: Any, **__: Any) -> None:
        """Nothing: SGLang's runner would launch what the replay does once more before it."""


class PassGraphs(EAGLEDraftExtendCudaGraphRunner):  # type: ignore[misc]
    """For backends whose ``draft_extend_metadata_captured_in_graph`` is true."""

    def execute(self, forward_batch: Any, select_index: torch.Tensor) -> Any:
        backend, self.draft_extend_attn_backend = self.draft_extend_attn_backend, _RefreshedInGraph()
        try:
            return super().execute(forward_batch, select_index)
        finally:
            self.draft_extend_attn_backend = backend


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
