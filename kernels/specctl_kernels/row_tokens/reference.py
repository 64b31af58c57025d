"""The same in plain PyTorch and Python, in float64."""

from __future__ import annotations

import torch

from specctl_kernels.row_tokens.launch import DRAWS, lanes_in

__all__ = ["in_drawing_order", "sample_of_row"]

_RUN_BYTES = 16


def in_drawing_order(logits: torch.Tensor) -> torch.Tensor:
    """int64[V]: the columns of a row as they are drawn from, by lane and then by column."""
    run = _RUN_BYTES // logits.element_size()
    column = torch.arange(logits.shape[-1])
    lane = column // run % lanes_in(logits.shape[-1], run)
    return lane.argsort(stable=True)


def sample_of_row(whole: torch.Tensor, kept: torch.Tensor, order: torch.Tensor, uniforms: list[float]) -> int:
    """The first of the samples of ``whole`` that ``kept`` has, else one of ``kept``. Both float64[V], laws;
    uniforms: ``DRAWS`` numbers, the last of them for ``kept``."""
    from specctl_kernels.verify_rejection.reference import sample_by

    for uniform in uniforms[: DRAWS - 1]:
        token = int(order[sample_by(whole[order], uniform)])
        if kept[token] > 0:
            return token
    return int(order[sample_by(kept[order], uniforms[-1])])
