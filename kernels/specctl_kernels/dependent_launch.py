"""Kernels of one call that begin while the one before still ends (CUDA's programmatic dependent launch).

From Hopper on a kernel may be sent to the device before its predecessor is done; what lies before its wait
overlaps with the predecessor's end, and the gap between the two is not waited for. Every program of such a
kernel waits, so that whoever waits for it has waited for all before it too.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["followed_early", "launched_early", "let_next_begin", "wait_for_previous"]


@triton.jit
def wait_for_previous(IS_EARLY: tl.constexpr):
    """Until the kernel before is done and its writes can be read."""
    if IS_EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_begin(IS_EARLY: tl.constexpr):
    """Once every program has come here the next kernel may be sent; it waits by itself for what this one
    writes. Said first, it is sent when this kernel's last programs begin."""
    if IS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@cache
def _is_possible(device: torch.device) -> bool:
    return (
        device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) >= (9, 0)
    )


def launched_early(device: torch.device, is_first: bool = False) -> dict[str, Any]:
    """What a launch of a kernel with ``wait_for_previous`` is given. The first of a call is not early: what
    it reads comes from a kernel that is not ours."""
    if is_first or not _is_possible(device):
        return {"IS_EARLY": False}
    return {"IS_EARLY": True, "launch_pdl": True}


def followed_early(device: torch.device) -> dict[str, bool]:
    """What a launch of a kernel with ``let_next_begin`` is given."""
    return {"IS_EARLY": _is_possible(device)}
