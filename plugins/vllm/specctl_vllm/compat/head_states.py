"""What a target's step leaves for a draft head, and the memory of a head that did not run on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from specctl_kernels.head_memory import HeadMemory
from vllm.v1.worker.gpu.input_batch import InputBatch

__all__ = ["HeadStep", "head_memory"]


@dataclass(frozen=True)
class HeadStep:
    """One step of n requests and T rows of the target."""

    batch: Any
    states: torch.Tensor
    """[T, F], as the head takes them or as it combines them."""
    num_sampled: torch.Tensor
    num_rejected: torch.Tensor
    last_sampled: torch.Tensor
    next_prefill: torch.Tensor

    @classmethod
    def of_nobody(
        cls, buffers: Any, slots: int, state_size: int, dtype: torch.dtype, device: torch.device
    ) -> HeadStep:
        """One row of a request that is nobody's, to compile with. ``buffers``: the target's inputs."""
        one = torch.ones(1, dtype=torch.int32, device=device)
        last = torch.zeros(slots, dtype=torch.int64, device=device)
        states = torch.zeros(1, state_size, dtype=dtype, device=device)
        return cls(InputBatch.make_dummy(1, 1, buffers), states, one, one - 1, last, last.to(torch.int32))

    def places(self, requests: torch.Tensor, blocks: torch.Tensor) -> dict[str, torch.Tensor]:
        """Where the target's rows are. requests integer[>= n], slots; blocks int32[>= n, B]."""
        n = self.batch.num_reqs
        return {
            "target_positions": self.batch.positions,
            "target_starts": self.batch.query_start_loc[: n + 1],
            "requests": requests[:n],
            "blocks": blocks,
        }

    def outcome(self) -> dict[str, torch.Tensor]:
        return {
            "num_sampled": self.num_sampled,
            "num_rejected": self.num_rejected,
            "last_sampled": self.last_sampled,
            "next_prefill": self.next_prefill,
        }


def head_memory(
    slots: int, ring: int, state_size: int, dtype: torch.dtype, device: torch.device, lower: str
) -> HeadMemory:
    """RuntimeError where the device has no room, with what to ``lower``."""
    sizes = slots, ring, state_size, dtype
    try:
        return HeadMemory(*sizes, device)
    except torch.cuda.OutOfMemoryError as error:
        raise RuntimeError(
            f"specctl: no device memory for the {HeadMemory.bytes_of(*sizes)} bytes that bring the head "
            f"back after a rest; lower {lower}"
        ) from error
