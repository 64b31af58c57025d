"""The public call of a uniform draft pass's rows."""

from __future__ import annotations

from typing import NamedTuple

import torch

from specctl_kernels.peagle_rows.kernel import peagle_rows_kernel
from specctl_kernels.sizes import parts_of, power_of_2

__all__ = ["PassBuffers", "PassRows", "peagle_rows"]

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


class PassBuffers(NamedTuple):
    """What a captured pass reads, of m requests, m at least n: rows behind the n requests only pad, and are
    laid out at slot 0."""

    ids: torch.Tensor
    """int64[m * 2 K]"""
    hidden: torch.Tensor
    """[m * 2 K, H]"""
    slots: torch.Tensor
    """int64[m * 2 K]"""
    first: torch.Tensor
    """int64[m]"""
    positions: torch.Tensor
    """int64[m * 2 K]"""
    lengths: torch.Tensor
    """int64[m], of each text with its pass's rows"""
    row_counts: torch.Tensor
    """int32[m], 2 K"""
    requests: torch.Tensor
    """int64[m]"""
    padding_length: int
    """The length that a request has which only pads."""


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
    into: PassBuffers | None = None,
) -> PassRows:
    """The inputs of a pass that makes K ``drafts`` for each of n requests (arXiv 2602.01469, section 3), in
    one launch without a host synchronisation, in new memory. Or all but the last states ``into`` memory that
    there is: then the returned rows are views of it.

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
    last_hidden = hidden.new_empty(n, hidden_size)
    if into is None:
        made, more, padded, padding_length = _new(tokens, hidden, rows, last_hidden), (None,) * 4, n, 0
    else:
        made, more, padded, padding_length = _views(into, n, rows, last_hidden)
    if padded:
        tile = min(_TILE, power_of_2(hidden_size))
        peagle_rows_kernel[(padded * rows, parts_of(hidden_size, tile))](
            tokens, tokens.stride(0), hidden, hidden.stride(0), hidden.stride(1), known, mask_hidden,
            requests, starts, slot_table, slot_table.stride(0), *made, *more, mask_id, n, padding_length,
            ROWS=rows, DRAFTS=drafts, HIDDEN=hidden_size, TILE=tile, num_warps=4,
        )  # fmt: skip
    return made


def _new(tokens: torch.Tensor, hidden: torch.Tensor, rows: int, last_hidden: torch.Tensor) -> PassRows:
    n, hidden_size = last_hidden.shape
    return PassRows(
        ids=tokens.new_empty(n * rows, dtype=torch.int64),
        hidden=hidden.new_empty(n * rows, hidden_size),
        slots=tokens.new_empty(n * rows, dtype=torch.int64),
        first=tokens.new_empty(n, dtype=torch.int64),
        last_hidden=last_hidden,
    )


def _views(
    into: PassBuffers, n: int, rows: int, last_hidden: torch.Tensor
) -> tuple[PassRows, tuple[torch.Tensor, ...], int, int]:
    """What the kernel writes to, of how many requests, and the length of those that pad."""
    padded, hidden_size = into.requests.shape[0], last_hidden.shape[1]
    flat = (into.ids, into.slots, into.positions)
    of_requests = (into.first, into.lengths, into.row_counts)
    if (
        padded < n
        or any(one.shape != (padded * rows,) for one in flat)
        or any(one.shape != (padded,) for one in of_requests)
        or into.hidden.shape != (padded * rows, hidden_size)
        or not into.hidden.is_contiguous()
    ):
        raise ValueError(
            f"expected buffers of at least {n} requests with {rows} rows and contiguous states of "
            f"{hidden_size}, got {[tuple(one.shape) for one in into[:-1]]}"
        )
    laid_out = n * rows
    made = PassRows(
        into.ids[:laid_out], into.hidden[:laid_out], into.slots[:laid_out], into.first[:n], last_hidden
    )
    return made, (into.positions, into.lengths, into.row_counts, into.requests), padded, into.padding_length


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
