"""Two uniform numbers for each row, from counters alone."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["uniforms_at"]


@triton.jit
def _to_unit(high, low):
    """float64 in [0, 1) from the first 53 of 64 bits."""
    bits = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    return (bits >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def uniforms_at(seed, position, place=0):
    """(accept, sample) float64 of int64 positions: Philox4x32-10 (Salmon et al. 2011), its key the seed's two
    halves, its counter (position's low half, its high half, place, 0)."""
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, low * 0 + place, low * 0)
    return _to_unit(a, b), _to_unit(c, d)
