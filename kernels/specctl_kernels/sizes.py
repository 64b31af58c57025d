"""Sizes that kernels are compiled for and launched with.

By plain arithmetic: on the host each of Triton's own functions for it takes microseconds.
"""

from __future__ import annotations

__all__ = ["GRID_MOST", "parts_of", "power_of_2"]

GRID_MOST = 65535
"""Programs in a grid's second and third dimension."""


def parts_of(size: int, part: int) -> int:
    """How many parts hold ``size``; the last may be smaller."""
    return -(-size // part)


def power_of_2(size: int, least: int = 1) -> int:
    """The first from ``size``, over 0, and from ``least``, a power of 2."""
    return max(least, 1 << (size - 1).bit_length())
