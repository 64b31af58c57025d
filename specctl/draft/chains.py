"""Token text with chains of equal n-grams, in one flat uint32 array: the storage under the suffix index.

A text is a ring of ``CAP`` tokens. For each rung (an n-gram length) a linear-probing hash table maps an
n-gram to its latest occurrence, and ``back`` links an occurrence to the one before it. Words of a block,
from ``row[BASE]`` on, with R rungs:

    text    [CAP]      token ids; SEPARATOR between the documents of a corpus
    back    [CAP, R]   distance to the previous occurrence of the same n-gram, 0 = none
    bucket  [R, NB]    0 = free, else tag << POS_BITS | ring index + 1

A bucket's n-gram is compared with the text itself, so hash collisions cost time and never exactness.
Positions count from the first token ever pushed; [TAIL, HEAD) is live. An n-gram of up to MAX_RUNG tokens
that ends at TAIL is still readable, because a ring keeps MAX_RUNG tokens below TAIL unwritten.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = [
    "BASE",
    "CAP",
    "COMING",
    "HEAD",
    "MAX_RUNG",
    "MIN_CAP",
    "ROW_WORDS",
    "SEPARATOR",
    "TAIL",
    "block_words",
    "find",
    "index_of",
    "new_row",
    "push",
    "same_gram",
    "stack_hashes",
]

BASE, CAP, NB, LIMIT, HEAD, TAIL, ORIGIN, POS_BITS, COMING = range(9)
ROW_WORDS = 9
SEPARATOR = 0xFFFFFFFF
MAX_RUNG = 16
MIN_CAP = 4 * MAX_RUNG

_SEPARATOR = np.uint32(SEPARATOR)
_SEED = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0xD6E8FEB86659FD93)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


def buckets_for(cap: int) -> int:
    """Two thirds full at most."""
    return cap + cap // 2


def block_words(cap: int, rungs: int) -> int:
    """Words of a block that holds ``cap`` tokens."""
    return cap * (1 + rungs) + rungs * buckets_for(cap)


def new_row(base: int, cap: int, *, is_ring: bool) -> npt.NDArray[np.int64]:
    """Head of an empty text. The block's words must be zero. A ring evicts its oldest token when full."""
    row = np.zeros(ROW_WORDS, np.int64)
    row[BASE], row[CAP], row[NB] = base, cap, buckets_for(cap)
    row[LIMIT] = cap - MAX_RUNG if is_ring else cap
    row[POS_BITS] = int(cap).bit_length()
    return row


@njit(cache=True, nogil=True)
def index_of(row, pos):
    """Ring index of a position in (HEAD - CAP, HEAD]."""
    idx = pos - row[ORIGIN]
    if idx < 0:
        idx += row[CAP]
    elif idx >= row[CAP]:
        idx -= row[CAP]
    return idx


@njit(cache=True, nogil=True)
def _mixed(h):
    h ^= h >> _HALF
    h *= _MIX
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True)
def stack_hashes(mem, row, pos, rungs, out):  # rungs int64[R] ascending, out uint64[R]
    """Hashes of the n-grams that end at pos; returns how many rungs fit before a separator or the start."""
    base = row[BASE]
    idx = index_of(row, pos)
    h = _SEED
    rung = 0
    for j in range(min(rungs[-1], pos + 1)):
        token = mem[base + idx]
        if token == _SEPARATOR:
            break
        h = (h ^ np.uint64(token)) * _STEP
        h ^= h >> _HALF
        if j + 1 == rungs[rung]:
            out[rung] = _mixed(h)
            rung += 1
        idx -= 1
        if idx < 0:
            idx += row[CAP]
    return rung


@njit(cache=True, nogil=True)
def _gram_hash(mem, row, idx, length):
    base = row[BASE]
    h = _SEED
    for _ in range(length):
        h = (h ^ np.uint64(mem[base + idx])) * _STEP
        h ^= h >> _HALF
        idx -= 1
        if idx < 0:
            idx += row[CAP]
    return _mixed(h)


@njit(cache=True, nogil=True)
def _home(row, h):
    return np.int64(((h >> _HALF) * np.uint64(row[NB])) >> _HALF)


@njit(cache=True, nogil=True)
def _tag(row, h):
    """Low bits of the hash, above the position's bits of a bucket word."""
    bits = np.uint64(row[POS_BITS])
    return ((h & _LOW) << bits) & _LOW


@njit(cache=True, nogil=True)
def same_gram(mem, row, idx, mem_b, row_b, idx_b, length):
    """True if the ``length`` tokens that end at the two ring indices are equal."""
    base, base_b = row[BASE], row_b[BASE]
    for _ in range(length):
        if mem[base + idx] != mem_b[base_b + idx_b]:
            return False
        idx -= 1
        if idx < 0:
            idx += row[CAP]
        idx_b -= 1
        if idx_b < 0:
            idx_b += row_b[CAP]
    return True


@njit(cache=True, nogil=True)
def find(mem, row, rungs, rung, h, mem_b, row_b, idx_b):
    """(bucket, ring index of the latest occurrence or -1) of the n-gram that ends at idx_b of text b."""
    nb = row[NB]
    start = row[BASE] + row[CAP] * (1 + rungs.size) + rung * nb
    bits = np.uint64(row[POS_BITS])
    mask = (_ONE << bits) - _ONE
    tag = _tag(row, h)
    bucket = _home(row, h)
    while True:
        word = np.uint64(mem[start + bucket])
        if word == np.uint64(0):
            return bucket, np.int64(-1)
        if (word & ~mask) == tag:
            idx = np.int64(word & mask) - 1
            if same_gram(mem, row, idx, mem_b, row_b, idx_b, rungs[rung]):
                return bucket, idx
        bucket += 1
        if bucket == nb:
            bucket = 0


@njit(cache=True, nogil=True)
def _delete(mem, row, rungs, rung, bucket):
    """Free a bucket and move later ones of its cluster up, so that no probe meets a gap."""
    nb = row[NB]
    start = row[BASE] + row[CAP] * (1 + rungs.size) + rung * nb
    mask = (_ONE << np.uint64(row[POS_BITS])) - _ONE
    hole = bucket
    at = bucket
    while True:
        at += 1
        if at == nb:
            at = 0
        word = np.uint64(mem[start + at])
        if word == np.uint64(0):
            break
        home = _home(row, _gram_hash(mem, row, np.int64(word & mask) - 1, rungs[rung]))
        from_home = at - home if at >= home else at - home + nb
        from_hole = at - hole if at >= hole else at - hole + nb
        if from_home >= from_hole:
            mem[start + hole] = np.uint32(word)
            hole = at
    mem[start + hole] = np.uint32(0)


@njit(cache=True, nogil=True)
def _evict_oldest(mem, row, rungs, hashes):
    pos = row[TAIL]
    idx = index_of(row, pos)
    for rung in range(stack_hashes(mem, row, pos, rungs, hashes)):
        bucket, latest = find(mem, row, rungs, rung, hashes[rung], mem, row, idx)
        if latest == idx:
            _delete(mem, row, rungs, rung, bucket)
    row[TAIL] = pos + 1


@njit(cache=True, nogil=True)
def push(mem, row, rungs, hashes, token):  # token uint32, hashes uint64[R] scratch
    """Append one token; a full ring evicts its oldest."""
    if row[HEAD] - row[TAIL] >= row[LIMIT]:
        _evict_oldest(mem, row, rungs, hashes)
    pos = row[HEAD]
    if pos - row[ORIGIN] >= row[CAP]:
        row[ORIGIN] += row[CAP]
    base, cap, nb = row[BASE], row[CAP], row[NB]
    idx = pos - row[ORIGIN]
    mem[base + idx] = token
    back = base + cap + idx * rungs.size
    known = stack_hashes(mem, row, pos, rungs, hashes)
    for rung in range(rungs.size):
        mem[back + rung] = np.uint32(0)
        if rung < known:
            bucket, latest = find(mem, row, rungs, rung, hashes[rung], mem, row, idx)
            if latest >= 0:
                mem[back + rung] = np.uint32(idx - latest if idx > latest else idx - latest + cap)
            word = _tag(row, hashes[rung]) | np.uint64(idx + 1)
            mem[base + cap * (1 + rungs.size) + rung * nb + bucket] = np.uint32(word)
    row[HEAD] = pos + 1
