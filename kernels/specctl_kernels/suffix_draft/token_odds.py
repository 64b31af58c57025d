"""A token's probability by its votes and by what it is: ``specctl.draft.token_odds`` on the device."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["PLACES", "chance_of", "note"]

# The numbers of ``specctl.draft.token_odds``.
_PLACE_BITS: tl.constexpr = tl.constexpr(13)
PLACES: tl.constexpr = tl.constexpr(2**13)
_EVERY: tl.constexpr = tl.constexpr(0)
_TOKEN: tl.constexpr = tl.constexpr(2_654_435_761)
_BEFORE: tl.constexpr = tl.constexpr(2_246_822_519)
_PAIR: tl.constexpr = tl.constexpr(3_266_489_917)
_MASK: tl.constexpr = tl.constexpr(0xFFFFFFFF)
_UNIT: tl.constexpr = tl.constexpr(1024)


@triton.jit
def _places_of(token, before):
    """Of a token, and of it behind ``before``: int64 of their shape."""
    mask = tl.full((), _MASK, tl.uint64)
    one = (token.to(tl.uint32, bitcast=True).to(tl.uint64) * tl.full((), _TOKEN, tl.uint64)) & mask
    other = (before.to(tl.uint32, bitcast=True).to(tl.uint64) * tl.full((), _BEFORE, tl.uint64)) & mask
    pair = (((one ^ (other >> 15)) + other) * tl.full((), _PAIR, tl.uint64)) & mask
    return (one >> (32 - _PLACE_BITS)).to(tl.int64), (pair >> (32 - _PLACE_BITS)).to(tl.int64)


@triton.jit
def chance_of(chance_ptr, odds_ptr, entry, token, before):
    """float64, of the shape of entry, token and before: int32 that may be anything where none is asked."""
    one, pair = _places_of(token, before)
    chance = tl.load(chance_ptr + entry).to(tl.float64)
    odds = tl.load(odds_ptr + one).to(tl.float64) * tl.load(odds_ptr + pair).to(tl.float64)
    likely = chance * (odds * tl.load(odds_ptr + _EVERY).to(tl.float64))
    return likely / (1.0 - chance + likely)


@triton.jit
def note(chance_ptr, odds_ptr, entries, tokens, before, is_known, came_true, counted_ptr):
    """Count the outcomes of a draft's tokens, where they are known, in int32[3 * PLACES]."""
    chances = chance_of(chance_ptr, odds_ptr, entries, tokens, before)
    expected = (chances * _UNIT + 0.5).to(tl.int32)
    one, pair = _places_of(tokens, before)
    _add(counted_ptr, one, is_known, came_true, expected)
    _add(counted_ptr, pair, is_known, came_true, expected)
    # The programs of all requests count here: once for a draft, not for a token.
    every_ptr = counted_ptr + 3 * _EVERY
    tl.atomic_add(every_ptr, tl.sum(is_known.to(tl.int32)))
    tl.atomic_add(every_ptr + 1, tl.sum((is_known & came_true).to(tl.int32)))
    tl.atomic_add(every_ptr + 2, tl.sum(tl.where(is_known, expected, 0)))


@triton.jit
def _add(counted_ptr, places, is_known, came_true, expected):
    tl.atomic_add(counted_ptr + 3 * places, 1, mask=is_known)
    tl.atomic_add(counted_ptr + 3 * places + 1, 1, mask=is_known & came_true)
    tl.atomic_add(counted_ptr + 3 * places + 2, expected, mask=is_known)
