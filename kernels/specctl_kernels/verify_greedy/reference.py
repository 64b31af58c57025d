"""The same in plain Python."""

from __future__ import annotations

from itertools import pairwise

import torch

from specctl_kernels.row_argmax.reference import row_argmax_reference
from specctl_kernels.verify_greedy.launch import NO_TOKEN

__all__ = ["verify_greedy_reference"]


def verify_greedy_reference(
    logits: torch.Tensor, drafts: torch.Tensor, starts: torch.Tensor, *, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``verify_greedy``."""
    choices = row_argmax_reference(logits).tolist() if len(logits) else []
    bounds = starts.tolist()
    tokens = torch.full((len(bounds) - 1, width), NO_TOKEN, dtype=torch.int64)
    counts = torch.zeros(len(bounds) - 1, dtype=torch.int32)
    for req, (start, end) in enumerate(pairwise(bounds)):
        emitted = []
        for row in range(start, end):
            emitted.append(choices[row])
            if row + 1 < end and int(drafts[row + 1]) != choices[row]:
                break
        tokens[req, : len(emitted)] = torch.tensor(emitted, dtype=torch.int64)
        counts[req] = len(emitted)
    return tokens, counts
