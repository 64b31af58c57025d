"""Device memory that only the kernels of one call use, kept for the next call.

An allocator takes the host a few microseconds for each tensor, and a call needs up to twenty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from triton.runtime import driver

__all__ = ["Part", "workspace"]

Part = tuple[tuple[int, ...], torch.dtype]
"""A tensor's shape and dtype."""
_KEPT_BYTES_MOST = 64 << 20
"""Of a layout; a call that needs more gets memory of its own."""
_KEPT_MOST = 32
"""Layouts, by thread and stream."""
_KEPT_SIZES_MOST = 256
"""Of a layout."""
_ALIGNED_BYTES = 256


class _Kept:
    """The memory of a layout, and the tensors in it by the sizes that were asked for."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self.made: dict[tuple[int, ...], tuple[torch.Tensor, ...]] = {}

    def make(
        self, like: torch.Tensor, layout: Callable[..., list[Part]], sizes_asked: tuple[int, ...]
    ) -> tuple[torch.Tensor, ...]:
        parts = layout(*sizes_asked)
        sizes = [prod(shape) * dtype.itemsize for shape, dtype in parts]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES)
        if starts[-1] > _KEPT_BYTES_MOST:
            return _fresh(like, parts)
        if self._memory is None or self._memory.shape[0] < starts[-1]:
            self._memory = like.new_empty(1 << (starts[-1] - 1).bit_length(), dtype=torch.uint8)
            self.made.clear()
        if len(self.made) >= _KEPT_SIZES_MOST:
            self.made.clear()
        made = tuple(
            self._memory[start : start + size].view(dtype).view(shape)
            for start, size, (shape, dtype) in zip(starts[:-1], sizes, parts, strict=True)
        )
        self.made[sizes_asked] = made
        return made


class _OfThread(threading.local):
    """Calls of one thread on one stream follow each other, on the device too, so they can share."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, ...], _Kept] = {}


_of_thread = _OfThread()


def workspace(like: torch.Tensor, layout: Callable[..., list[Part]], *sizes: int) -> tuple[torch.Tensor, ...]:
    """Tensors on the device of ``like``, of the shapes and dtypes that ``layout(*sizes)`` names, with
    whatever is in them. ``layout`` depends on ``sizes`` alone.

    The next call with this layout, in this thread on this stream, may get the same memory: who asks uses a
    layout once, and returns none of it. While a CUDA graph is captured the memory is the graph's own.
    """
    device, stream = like.device, 0
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return _fresh(like, layout(*sizes))
        stream = driver.active.get_current_stream(device.index)
    kept = _of_thread.kept.get((layout, device, stream))
    if kept is None:
        if len(_of_thread.kept) >= _KEPT_MOST:
            _of_thread.kept.clear()
        kept = _of_thread.kept[layout, device, stream] = _Kept()
    found = kept.made.get(sizes)
    return kept.make(like, layout, sizes) if found is None else found


def _fresh(like: torch.Tensor, parts: list[Part]) -> tuple[torch.Tensor, ...]:
    return tuple(like.new_empty(shape, dtype=dtype) for shape, dtype in parts)
