"""Block tables of a draft head that leaves KV blocks out.

Wraps vLLM's BlockTables. Reason: vLLM's draft metadata reads ``input_block_tables``, which is the target's;
a head that was at rest attends to fewer blocks (specctl_kernels.head_memory).
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["HeadBlockTables"]


class HeadBlockTables:
    """As the target's, but for ``input_block_tables``, which the head's owner fills."""

    def __init__(self, target: Any) -> None:
        self.specctl_target = target
        self.input_block_tables = [torch.zeros_like(table) for table in target.input_block_tables]
        """int32[max_num_reqs, blocks] of each KV cache group."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.specctl_target, name)

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        """The rows that a captured graph reads, emptied."""
        return tuple(table[:num_reqs].zero_() for table in self.input_block_tables)
