"""The mask of a verification as SGLang's attention backends read it, made on the device at once."""

from __future__ import annotations

import torch

__all__ = ["full_mask"]


def full_mask(tree: torch.Tensor, lengths: torch.Tensor, lengths_cpu: torch.Tensor) -> torch.Tensor:
    """bool[sum of w * (length + w)]: request after request, for each place what it sees of context and tree.

    tree bool[n, w, w] and lengths int[n] on the device, lengths_cpu the same numbers on the host, which size
    the result without waiting. Everything is seen but what the tree hides, so only n * w * w are written.
    """
    requests, width, _ = tree.shape
    total = width * (int(lengths_cpu.sum()) + requests * width)
    mask = torch.ones(total, dtype=torch.bool, device=tree.device)
    strides = lengths.to(torch.int64) + width
    starts = torch.cumsum(strides * width, 0) - strides * width
    place = torch.arange(width, device=tree.device)
    first = starts[:, None] + place * strides[:, None] + (strides - width)[:, None]  # [n, w]
    mask[(first[:, :, None] + place).flatten()] = tree.flatten()
    return mask
