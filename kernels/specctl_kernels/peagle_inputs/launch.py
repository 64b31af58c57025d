"""The public call of the parallel draft pass's inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from specctl_kernels.head_memory import HeadMemory, bits_of
from specctl_kernels.peagle_inputs.kernel import peagle_inputs_kernel

__all__ = ["DraftRows", "peagle_inputs"]

PAD_SLOT = -1
_ROWS = 8
_TILE = 512


@dataclass(frozen=True)
class DraftRows:
    """Buffers of a draft pass, at fixed addresses, for at most N rows of R requests with K drafts each."""

    ids: torch.Tensor
    """int32[N]"""
    positions: torch.Tensor
    """int64[N]"""
    slots: torch.Tensor
    """int64[N], where a row's key and value go; -1: nowhere."""
    starts: torch.Tensor
    """int32[R + 1], the first row of each request, padded with the number of rows."""
    seq_lens: torch.Tensor
    """int32[R], what the last row of each request attends to; 0 for padding."""
    hidden: torch.Tensor
    """[N, H], the model's dtype."""
    sample_rows: torch.Tensor
    """int64[R * K], the rows to draw drafts from, request by request."""
    sample_positions: torch.Tensor
    """int64[R * K], the position before each draft."""
    sample_requests: torch.Tensor
    """int64[R * K], the request's slot; -1: nobody's."""


def peagle_inputs(
    rows: DraftRows,
    target_ids: torch.Tensor,
    target_positions: torch.Tensor,
    target_starts: torch.Tensor,
    target_hidden: torch.Tensor,
    mask_hidden: torch.Tensor,
    requests: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    last_sampled: torch.Tensor,
    next_prefill: torch.Tensor,
    blocks: torch.Tensor,
    *,
    longest_query: int,
    block_tokens: int,
    mask_id: int,
    drafts: int,
    width: int,
    max_model_len: int,
    memory: HeadMemory | None = None,
    behind_hidden: torch.Tensor | None = None,
) -> None:
    """Lay out one pass that drafts ``drafts`` tokens for each of n requests, without a host synchronisation.

    A request's rows are its accepted target rows, each with the token after it, then ``drafts - 1`` mask
    slots; P-EAGLE (arXiv 2602.01469) draws one draft from the last accepted row and from every mask slot.

    target_ids       int32[T], target_positions int64[T], target_hidden [T, H]: what the target ran on
    target_starts    int32[n + 1], where each request's rows begin there
    mask_hidden      [H], the hidden state of a mask slot
    requests         integer[n], slots; -1 writes nothing to the KV cache
    num_sampled      int32[n]: 0 while the prompt is unfinished; num_rejected int32[n]
    last_sampled     int64[slots]; next_prefill int32[slots], the prompt's token after its rows
    blocks           int32[>= n, B], the KV blocks of each request; block 0 is never written
    longest_query    the most target rows of a request
    width            rows of each request, at least longest_query + drafts - 1; 0: as many as it needs
    behind_hidden    [n * behind, H]: also ``behind`` rows before each request's own, from ``memory``; of
                     them those that it kept and that the head has not seen are written to the KV cache

    ValueError: a width that is too small, or one together with remembered rows.
    """
    n = target_starts.shape[0] - 1
    behind = 0 if behind_hidden is None else behind_hidden.shape[0] // n
    if width and behind:
        raise ValueError("width: expected 0 together with remembered rows")
    if 0 < width < longest_query + drafts - 1:
        raise ValueError(f"width: expected at least {longest_query + drafts - 1}, got {width}")
    most = width or behind + longest_query + drafts - 1
    ring = (
        (mask_hidden, num_sampled, num_sampled, num_sampled, num_sampled)
        if memory is None or behind_hidden is None
        else (behind_hidden, memory.positions, memory.tokens, memory.blocks, memory.unseen)
    )
    peagle_inputs_kernel[(n, triton.cdiv(most, _ROWS))](
        rows.ids, rows.positions, rows.slots, rows.starts, rows.seq_lens, rows.hidden,
        rows.sample_rows, rows.sample_positions, rows.sample_requests,
        target_ids, target_positions, target_starts, target_hidden, target_hidden.stride(0),
        mask_hidden, requests, num_sampled, num_rejected, last_sampled, next_prefill,
        blocks, blocks.stride(0), *ring, width, drafts - 1, drafts, behind, n, rows.seq_lens.shape[0],
        rows.slots.shape[0], max_model_len, mask_id,
        HIDDEN=rows.hidden.shape[1], BLOCK_TOKENS=block_tokens, ROWS=_ROWS,
        TILE=min(_TILE, triton.next_power_of_2(rows.hidden.shape[1])), PAD=PAD_SLOT,
        HAS_BEHIND=behind > 0, RING=1 if memory is None else memory.ring, BITS=bits_of(block_tokens),
    )  # fmt: skip
