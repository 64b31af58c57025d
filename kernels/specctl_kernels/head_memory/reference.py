"""The same notes in plain Python, position by position, for blocks of at most 64 tokens."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from specctl_kernels.head_memory.launch import HeadMemory

__all__ = ["remember_reference", "see_reference"]


def _set(memory: HeadMemory, block: int, bit: int, is_unseen: bool) -> None:
    if block == 0:
        return
    word = int(memory.unseen[block]) & (2**64 - 1)
    word = word | 1 << bit if is_unseen else word & ~(1 << bit)
    memory.unseen[block] = word - 2**64 if word >= 2**63 else word


def _requests(given: dict[str, Any]) -> Any:
    starts = given["target_starts"].tolist()
    for req, (start, stop) in enumerate(itertools.pairwise(starts)):
        known = stop - start - int(given["num_rejected"][req])
        yield req, int(given["requests"][req]), start, int(given["target_positions"][start]), known


def remember_reference(memory: HeadMemory, *, block_tokens: int, **given: Any) -> None:
    """As ``remember``, its tensors by name."""
    for req, request, start, first, known in _requests(given):
        if request < 0:
            continue
        source = given["last_sampled"] if given["num_sampled"][req] > 0 else given["next_prefill"]
        for row in range(known):
            position = first + row
            block = int(given["blocks"][req, position // block_tokens])
            _set(memory, block, position % block_tokens, True)
            if row >= known - memory.ring:
                entry = request, position % memory.ring
                memory.states[entry] = given["target_states"][start + row]
                memory.positions[entry] = position
                memory.tokens[entry] = (
                    given["target_ids"][start + row + 1] if row < known - 1 else source[request]
                )
                memory.blocks[entry] = block


def see_reference(
    memory: HeadMemory,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    behind: int,
    has_unseen: bool,
    block_tokens: int,
    **given: Any,
) -> None:
    """As ``see``, its tensors by name."""
    for req, request, _, first, known in _requests(given):
        blocks = given["blocks"][req].tolist()
        cut = 0
        if request >= 0:
            for position in range(max(first - behind, 0), first):
                entry = request, position % memory.ring
                block = blocks[position // block_tokens]
                if memory.positions[entry] == position and memory.blocks[entry] == block:
                    _set(memory, block, position % block_tokens, False)
            for position in range(first, first + known):
                _set(memory, blocks[position // block_tokens], position % block_tokens, False)
            if has_unseen:
                full = range(first // block_tokens)
                cut = max((number + 1 for number in full if memory.unseen[blocks[number]] != 0), default=0)
        needed = min(-(-int(seq_lens[req]) // block_tokens), len(blocks))
        table[req, : needed - cut] = torch.tensor(blocks[cut:needed], dtype=table.dtype)
        seq_lens[req] -= cut * block_tokens
