"""Public calls: keep a step that the head did not run on, and note what it has seen when it did."""

from __future__ import annotations

import torch
import triton

from specctl_kernels.head_memory.kernel import remember_kernel, see_kernel

__all__ = ["HeadMemory", "bits_of", "remember", "see"]

_CHUNK = 128
_TILE = 1024


class HeadMemory:
    """Of S slots the last ``ring`` positions that the head did not run on, and B blocks' unseen positions."""

    def __init__(
        self, slots: int, ring: int, state_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """ring: a power of two; ValueError otherwise. Takes ``HeadMemory.bytes_of`` bytes; ``set_blocks``
        comes before the first use."""
        if ring < 1 or ring & (ring - 1):
            raise ValueError(f"ring: expected a power of two, got {ring}")
        self.ring = ring
        self.states = torch.zeros((slots, ring, state_size), dtype=dtype, device=device)
        """[S, ring, F]: what the head's inputs are made of."""
        self.positions = torch.full((slots, ring), -1, dtype=torch.int32, device=device)
        self.tokens = torch.zeros((slots, ring), dtype=torch.int32, device=device)
        """int32[S, ring]: the token after each position."""
        self.blocks = torch.zeros((slots, ring), dtype=torch.int32, device=device)
        self.set_blocks(0)

    def set_blocks(self, blocks: int) -> None:
        """KV blocks 0 .. blocks - 1, all of which the head has seen; 8 bytes each."""
        self.unseen = torch.zeros(blocks, dtype=torch.int64, device=self.states.device)
        """int64[B]: bit i is set where the head has not written position i of the block."""

    @staticmethod
    def bytes_of(slots: int, ring: int, state_size: int, dtype: torch.dtype) -> int:
        return slots * ring * (state_size * dtype.itemsize + 12)

    def inputs(self, requests: torch.Tensor, first: torch.Tensor, behind: int) -> torch.Tensor:
        """[n * behind, F]: what was kept of the ``behind`` positions before ``first``, oldest first.

        requests integer[n], slots; first integer[n], positions. What was not kept is any other state.
        """
        offsets = torch.arange(-behind, 0, device=first.device)
        entries = (first[:, None] + offsets) % self.ring
        return self.states[requests.clamp(min=0)[:, None], entries].flatten(0, 1)


def bits_of(block_tokens: int) -> int:
    """Bits of a KV block's word in ``unseen``."""
    return min(block_tokens, 64)


def remember(
    memory: HeadMemory,
    target_ids: torch.Tensor,
    target_positions: torch.Tensor,
    target_starts: torch.Tensor,
    target_states: torch.Tensor,
    requests: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    last_sampled: torch.Tensor,
    next_prefill: torch.Tensor,
    blocks: torch.Tensor,
    *,
    block_tokens: int,
) -> None:
    """Keep the accepted rows of a step that the head does not run on. target_states [T, F]; the other
    arguments are those of ``specctl_kernels.peagle_inputs.peagle_inputs``."""
    state_size = memory.states.shape[2]
    tile = min(_TILE, triton.next_power_of_2(state_size))
    remember_kernel[(target_starts.shape[0] - 1, triton.cdiv(state_size, tile))](
        memory.states, memory.positions, memory.tokens, memory.blocks, memory.unseen,
        target_ids, target_positions, target_starts, target_states, target_states.stride(0),
        requests, num_sampled, num_rejected, last_sampled, next_prefill, blocks, blocks.stride(0),
        STATE=state_size, RING=memory.ring, BLOCK_TOKENS=block_tokens, BITS=bits_of(block_tokens),
        TILE=tile, CHUNK=_CHUNK,
    )  # fmt: skip


def see(
    memory: HeadMemory,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    target_positions: torch.Tensor,
    target_starts: torch.Tensor,
    requests: torch.Tensor,
    num_rejected: torch.Tensor,
    blocks: torch.Tensor,
    *,
    behind: int,
    has_unseen: bool,
    block_tokens: int,
) -> None:
    """The head runs on the accepted rows of a step and on the ``behind`` remembered positions before them.

    Leading blocks up to the last one with a position that the head has not written are left out of what it
    attends to: positions are rotary and kept in the keys, so that a context may begin later.

    table     int32[>= n, B] out, as ``blocks`` but without the blocks left out
    seq_lens  int32[n] in and out, shortened by them
    has_unseen: the head has ever been at rest; without, nothing is looked for.
    """
    see_kernel[(target_starts.shape[0] - 1,)](
        memory.unseen, memory.positions, memory.blocks, table, seq_lens,
        target_positions, target_starts, requests, num_rejected, blocks, blocks.stride(0),
        table.shape[1], behind, int(has_unseen),
        RING=memory.ring, BLOCK_TOKENS=block_tokens, BITS=bits_of(block_tokens), CHUNK=_CHUNK,
    )  # fmt: skip
