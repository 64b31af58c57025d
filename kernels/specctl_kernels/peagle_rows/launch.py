"""The public call of a uniform draft pass's rows."""

from __future__ import annotations

from typing import NamedTuple

import torch

from specctl_kernels.peagle_rows.kernel import peagle_rows_kernel
from specctl_kernels.sizes import parts_of, power_of_2

__all__ = ["PassRows", "peagle_rows"]

_TILE = 1024


class PassRows(NamedTuple):
    """Of n requests with 2 K rows each, request by request."""

    ids: torch.Tensor
    """int64[n * 2 K]"""
    hidden: torch.Tensor
    """[n * 2 K, H], the target's dtype"""
    slots: torch.Tensor
    """int64[n * 2 K], where a row's key and value go"""
    first: torch.Tensor
    """int64[n], of each request the row of its first draft; those of the others are behind it"""
    last_hidden: torch.Tensor
    """[n, H], the state of each request's last known row; the mask's where it has none"""


def peagle_rows(
    tokens: torch.Tensor,
    hidden: torch.Tensor,
    known: torch.Tensor,
    mask_hidden: torch.Tensor,
    requests: torch.Tensor,
    starts: torch.Tensor,
    slot_table: torch.Tensor,
    *,
    mask_id: int,
    drafts: int,
) -> PassRows:
    """The inputs of a pass that makes K ``drafts`` for each of n requests (arXiv 2602.01469, section 3), in
    one launch without a host synchronisation, in new memory.

    A request's rows are its known ones, each with the token after it, then mask rows: K drafts come from the
    last known row and the K - 1 behind it. All have 2 K rows, which is what a verification of K drafts can
    accept and K - 1 masks. With more known rows than K + 1 the drafts are nobody's.

    tokens       integer[n, w], contiguous rows, w at least 1: the token after each verified row
    hidden       [n, w, H], contiguous states: the target's of the verified rows, any float type
    known        integer[n], from 0 to min(w, 2 K): how many of them were accepted
    mask_hidden  [H], contiguous, any float type; mask_id: the token of a mask row
    requests     integer[n], the row of each request in the slot table
    starts       integer[n], the position of each request's first row
    slot_table   integer[P, T], contiguous rows: the slot of each position, T more than any that is laid out

    ValueError for shapes and strides that do not fit each other.
    """
    n, hidden_size, rows = tokens.shape[0], hidden.shape[2], 2 * drafts
    _check(tokens, hidden, mask_hidden, slot_table)
    made = PassRows(
        ids=tokens.new_empty(n * rows, dtype=torch.int64),
        hidden=hidden.new_empty(n * rows, hidden_size),
        slots=tokens.new_empty(n * rows, dtype=torch.int64),
        first=tokens.new_empty(n, dtype=torch.int64),
        last_hidden=hidden.new_empty(n, hidden_size),
    )
    if n:
        tile = min(_TILE, power_of_2(hidden_size))
        peagle_rows_kernel[(n * rows, parts_of(hidden_size, tile))](
            tokens, tokens.stride(0), hidden, hidden.stride(0), hidden.stride(1), known, mask_hidden,
            requests, starts, slot_table, slot_table.stride(0), *made, mask_id,
            ROWS=rows, DRAFTS=drafts, HIDDEN=hidden_size, TILE=tile, num_warps=4,
        )  # fmt: skip
    return made


def _check(
    tokens: torch.Tensor, hidden: torch.Tensor, mask_hidden: torch.Tensor, slot_table: torch.Tensor
) -> None:
    if hidden.shape[:2] != tokens.shape or mask_hidden.shape[0] != hidden.shape[2]:
        n, width = tokens.shape
        raise ValueError(
            f"expected hidden [{n}, {width}, H] and mask_hidden [H], got {tuple(hidden.shape)} and "
            f"{tuple(mask_hidden.shape)}"
        )
    if hidden.stride(2) != 1 or tokens.stride(1) != 1 or slot_table.stride(1) != 1:
        raise ValueError(
            "expected contiguous rows, got strides "
            f"{hidden.stride()} of hidden, {tokens.stride()} of tokens, {slot_table.stride()} of slot_table"
        )
