"""CUDA graphs of a parallel draft pass: one for each number of drafts and of requests.

Subclassed is vLLM's manager for DFlash's query pass, which builds the attention metadata of its own. Reason:
its graphs have one width, and a live table asks for any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.spec_decode.dflash.cudagraph import DFlashCudaGraphManager

from specctl_vllm.compat.decode_graphs import request_counts, smallest_for

__all__ = ["HeadGraphs"]


class HeadGraphs(DFlashCudaGraphManager):
    """``rows_of(k)`` rows for each request in a pass of k drafts, k from 1 to ``most_drafts``."""

    def __init__(
        self,
        vllm_config: Any,
        device: torch.device,
        mode: CUDAGraphMode,
        most_drafts: int,
        rows_of: Callable[[int], int],
    ) -> None:
        self._widths = [rows_of(drafts) for drafts in range(1, most_drafts + 1)]
        self._by_width: dict[int, list[BatchExecutionDescriptor]] = {}
        super().__init__(vllm_config, device, mode, decode_query_len=max(self._widths))

    def _init_candidates(self) -> None:
        if not self.cudagraph_mode:
            return
        most_rows = self.vllm_config.scheduler_config.max_num_batched_tokens
        self._by_width = {
            width: [
                BatchExecutionDescriptor(
                    cg_mode=CUDAGraphMode.FULL,
                    num_tokens=count * width,
                    num_reqs=count,
                    uniform_token_count=width,
                )
                for count in request_counts(self.max_num_reqs)
                if count * width <= most_rows
            ]
            for width in self._widths
        }
        descs = [desc for found in self._by_width.values() for desc in found]
        self._capture_descs = {
            CUDAGraphMode.FULL: sorted(descs, key=lambda desc: desc.num_tokens, reverse=True)
        }

    def find(self, requests: int, width: int) -> BatchExecutionDescriptor | None:
        """The smallest captured graph that holds the batch; None: there is none."""
        desc = smallest_for(self._by_width.get(width, []), requests)
        return desc if desc in self.graphs else None
