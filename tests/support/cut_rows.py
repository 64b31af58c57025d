"""Rows whose cuts are found in one way or another: float32[1, V]."""

from __future__ import annotations

import torch

__all__ = ["CUT_BY", "LISTED"]

CUT_BY = [(20, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.1), (20, 0.9, 0.0), (0, 0.9, 0.1), (20, 0.9, 0.1)]
"""top_k, top_p, min_p."""


def few_that_count(entries: int) -> torch.Tensor:
    """Of 9,001 columns, 3 pieces, so many are finite."""
    torch.manual_seed(6)
    logits = torch.full((1, 9001), float("-inf"))
    columns = torch.randperm(9001)[:entries].sort().values
    logits[0, columns] = torch.randn(entries).mul(8).round().div(4)
    return logits


def one_in_each_part() -> torch.Tensor:
    """More parts are needed than are read at first: 150 entries of nearly the same weight, in as many."""
    torch.manual_seed(7)
    logits = torch.full((1, 20_000), -9.0)
    logits[0, torch.arange(150) * 128 + 5] = torch.randn(150).mul(8).round().div(1024) + 4
    return logits


def all_in_few_parts() -> torch.Tensor:
    """Those that matter, and hundreds that do not, are in a few parts, so that other parts' largest are far
    down; the k-th largest is twice in a part and once in another."""
    torch.manual_seed(8)
    logits = torch.randn(1, 9001).mul(4).round().div(64) - 5
    dense = torch.arange(2000, 2640)
    logits[0, dense] = torch.arange(640).sqrt().mul(-0.6).floor().div(4)[torch.randperm(640)]
    logits[0, [2003, 2004, 8900]] = -1.0
    return logits


def one_over_a_flat_row() -> torch.Tensor:
    logits = torch.zeros(1, 9001)
    logits[0, 8000] = 9.0
    return logits


LISTED = {
    "few": few_that_count(300),
    "in each part": one_in_each_part(),
    "in few parts": all_in_few_parts(),
    "one": one_over_a_flat_row(),
}
