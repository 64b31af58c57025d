"""Public calls: the largest entry of each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specctl_kernels.dependent_launch import followed_early
from specctl_kernels.row_argmax.kernel import finish_kernel, pieces_kernel
from specctl_kernels.sizes import GRID_MOST, parts_of, power_of_2
from specctl_kernels.workspace import Part, workspace

__all__ = ["Partials", "row_argmax", "row_partials"]

_PIECE = 8192
_PIECE_OF_FEW = 2048
"""Few rows are cut finer, so that every multiprocessor has something to read."""
_FEW_ROWS = 32


@dataclass(frozen=True)
class Partials:
    """The largest entry of each piece of each row."""

    best: torch.Tensor
    """float32[N, P]"""
    at: torch.Tensor
    """int32[N, P], columns"""

    @property
    def pieces(self) -> int:
        return self.best.shape[1]

    @property
    def padded(self) -> int:
        return power_of_2(self.pieces)


def _partials(rows: int, pieces: int) -> list[Part]:
    return [((rows, pieces), torch.float32), ((rows, pieces), torch.int32)]


def row_partials(values: torch.Tensor) -> Partials:
    """values [N, V], rows contiguous, any float type; ValueError for another shape. Reads them once.

    The memory is that of the next call too, as in ``workspace``."""
    if values.ndim != 2 or values.shape[1] == 0 or (values.shape[1] > 1 and values.stride(1) != 1):
        raise ValueError(
            f"values: expected [rows, columns] with contiguous rows and a column at least, got shape "
            f"{tuple(values.shape)}, strides {values.stride()}"
        )
    rows, width = values.shape
    piece = _PIECE_OF_FEW if rows < _FEW_ROWS else _PIECE
    piece = min(piece, power_of_2(width))
    pieces = parts_of(width, piece)
    partials = Partials(*workspace(values, _partials, rows, pieces))
    if rows:
        pieces_kernel[(pieces, min(rows, GRID_MOST), parts_of(rows, GRID_MOST))](
            values,
            values.stride(0),
            rows,
            width,
            partials.best,
            partials.at,
            pieces,
            PIECE=piece,
            num_warps=4,
            **followed_early(values.device),
        )
    return partials


def row_argmax(values: torch.Tensor) -> torch.Tensor:
    """int64[N]: the column of each row's largest entry, of equals the first; NaN is never larger.

    values [N, V], rows contiguous, any float type.
    """
    partials = row_partials(values)
    out = values.new_empty(values.shape[0], dtype=torch.int64)
    if values.shape[0]:
        # Not early: the largest of a row is asked for inside captured graphs too.
        finish_kernel[(values.shape[0],)](
            partials.best, partials.at, out, partials.pieces, PADDED=partials.padded, num_warps=1
        )
    return out
