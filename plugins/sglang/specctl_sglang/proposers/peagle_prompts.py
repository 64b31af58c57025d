"""Where rows stand in a pass of a parallel head over prompts (arXiv 2602.01469, section 3): those of each
prompt, and behind them its mask rows."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["PromptRows", "prompt_rows"]


class PromptRows(NamedTuple):
    known: torch.Tensor
    """int64[all], the places of the prompts' rows."""
    ends: torch.Tensor
    """int64[n], which of those are the last of a prompt."""


def prompt_rows(lengths: torch.Tensor, of_all: int, masks: int) -> PromptRows:
    """lengths int64[n], without asking the device; ``of_all``: their sum; ``masks``: rows behind each."""
    before = torch.arange(len(lengths), device=lengths.device) * masks
    shifts = torch.repeat_interleave(before, lengths, output_size=of_all)
    known = torch.arange(of_all, device=lengths.device) + shifts
    return PromptRows(known, torch.cumsum(lengths, 0) - 1)
