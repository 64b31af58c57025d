"""Runs of verify_rejection beside its reference."""

from __future__ import annotations

from typing import Any

import torch
from specctl_kernels.verify_rejection import verify_rejection
from specctl_kernels.verify_rejection.reference import verify_rejection_reference
from support.verify_batches import packed

__all__ = ["BITS", "DEVICE", "IS_GPU", "equals_reference", "run"]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
BITS = 1.4426950408889634
"""The temperature at which every softmax weight of integer logits is a power of two."""


def run(given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    moved = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    tokens, counts = verify_rejection(**packed(moved))
    return tokens.cpu(), counts.cpu()


def equals_reference(given: dict[str, Any]) -> torch.Tensor:
    """int32[R], how many tokens both emit."""
    want, got = verify_rejection_reference(**packed(given)), run(given)
    assert got[1].tolist() == want[1].tolist()
    assert got[0].tolist() == want[0].tolist()
    return got[1]
