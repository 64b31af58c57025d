"""Token text with chains of equal n-grams, in one flat uint32 array: the storage under the suffix index.

A text is a ring of ``CAP`` tokens. For each rung (an n-gram length) a linear-probing hash table maps an
n-gram to its latest occurrence. ``back`` links an occurrence to the one before it with the same n-gram, of
the longest rung that has one: a chain visits occurrences of a long n-gram first and of shorter ones after.
Words of a block, from ``row[BASE]`` on, with R rungs:

    cell    [CAP, 2]   token id, SEPARATOR between the documents of a corpus; then the link ``back``, as the
                       distance to the previous occurrence, 0 = none
    bucket  [NB1]      of the first rung, then [R - 1, NB]: 0 = free, else tag << POS_BITS | ring index + 1

A token and its link share a cache line: at 10 million tokens nearly every step along a chain is a miss.

A bucket's n-gram is compared with the text itself, so hash collisions cost time and never exactness. Single
tokens have at most SINGLES buckets; when four fifths of them are taken, further ids are found by longer
n-grams only. Positions count from the first token ever pushed; [TAIL, HEAD) is live, and [HEAD, KNOWN) is
stored and not indexed yet. An n-gram of up to MAX_RUNG tokens that ends at TAIL is still readable, because a
ring keeps MAX_RUNG tokens below TAIL unwritten.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.memory import prefetch
from specctl.draft.options import SuffixIndexOptions

__all__ = [
    "BASE",
    "CAP",
    "COMING",
    "HEAD",
    "KNOWN",
    "MAX_RUNG",
    "MIN_CAP",
    "ROW_WORDS",
    "SEPARATOR",
    "TAIL",
    "block_words",
    "bucket_start",
    "fetch_buckets",
    "fetch_cells",
    "fetch_ends",
    "find",
    "index_of",
    "index_stored",
    "new_row",
    "push",
    "rungs_for",
    "same_gram",
    "stack_hashes",
    "store",
    "text_of",
    "token_at",
]

BASE, CAP, NB, LIMIT, HEAD, TAIL, ORIGIN, POS_BITS, COMING, KNOWN, NB1, TAKEN = range(12)
ROW_WORDS = 12
SEPARATOR = 0xFFFFFFFF
_RUNGS = (1, 2, 3, 5)
MAX_RUNG = 16
MIN_CAP = 4 * MAX_RUNG
SINGLES = 2**19

_SEPARATOR = np.uint32(SEPARATOR)
_SEED = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0xD6E8FEB86659FD93)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


def buckets_for(cap: int) -> int:
    """Five sixths full at most."""
    return cap + cap // 5


def first_buckets_for(cap: int, rungs: npt.NDArray[np.int64]) -> int:
    return min(buckets_for(cap), SINGLES) if rungs[0] == 1 else buckets_for(cap)


def block_words(cap: int, rungs: npt.NDArray[np.int64]) -> int:
    """Words of a block that holds ``cap`` tokens."""
    return 2 * cap + first_buckets_for(cap, rungs) + (rungs.size - 1) * buckets_for(cap)


def bucket_start(cap: int) -> int:
    """Offset of the buckets in a block; they must be zero before the first push."""
    return 2 * cap


def new_row(base: int, cap: int, rungs: npt.NDArray[np.int64], *, is_ring: bool) -> npt.NDArray[np.int64]:
    """Head of an empty text. A ring evicts its oldest token when full."""
    row = np.zeros(ROW_WORDS, np.int64)
    row[BASE], row[CAP], row[NB], row[NB1] = base, cap, buckets_for(cap), first_buckets_for(cap, rungs)
    row[LIMIT] = cap - MAX_RUNG if is_ring else cap
    row[POS_BITS] = int(cap).bit_length()
    return row


def text_of(
    mem: npt.NDArray[np.uint32], base: int, cap: int, first: int, last: int
) -> npt.NDArray[np.uint32]:
    """A view of the tokens at ring indices first to last - 1 of the block at ``base``."""
    return mem[base : base + 2 * cap][2 * first : 2 * last : 2]


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
def token_at(mem, row, pos):
    """The token at a position in (HEAD - CAP, HEAD)."""
    return mem[row[BASE] + 2 * index_of(row, pos)]


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
        token = mem[base + 2 * idx]
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
        h = (h ^ np.uint64(mem[base + 2 * idx])) * _STEP
        h ^= h >> _HALF
        idx -= 1
        if idx < 0:
            idx += row[CAP]
    return _mixed(h)


@njit(cache=True, nogil=True)
def _table(row, rung):
    """Where a rung's buckets start, and how many there are."""
    start = row[BASE] + 2 * row[CAP]
    if rung == 0:
        return start, row[NB1]
    return start + row[NB1] + (rung - 1) * row[NB], row[NB]


@njit(cache=True, nogil=True)
def _home(nb, h):
    return np.int64(((h >> _HALF) * np.uint64(nb)) >> _HALF)


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
        if mem[base + 2 * idx] != mem_b[base_b + 2 * idx_b]:
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
    start, nb = _table(row, rung)
    bits = np.uint64(row[POS_BITS])
    mask = (_ONE << bits) - _ONE
    tag = _tag(row, h)
    bucket = _home(nb, h)
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
def fetch_buckets(mem, row, hashes, usable):
    """Bring the buckets where ``find`` will begin into the cache; nothing waits for them."""
    for rung in range(usable):
        start, nb = _table(row, rung)
        prefetch(mem, start + _home(nb, hashes[rung]))


@njit(cache=True, nogil=True)
def fetch_ends(mem, rows, slots, first, last):
    """Bring the ends of the texts of slots[first:last] into the cache; nothing waits for them."""
    for i in range(first, last):
        row = rows[slots[i]]
        prefetch(mem, row[BASE] + 2 * row[KNOWN])


@njit(cache=True, nogil=True)
def fetch_cells(mem, row, hashes, usable):
    """Bring the occurrences that these buckets name into the cache; nothing waits for them."""
    bits = np.uint64(row[POS_BITS])
    mask = (_ONE << bits) - _ONE
    for rung in range(usable):
        start, nb = _table(row, rung)
        word = np.uint64(mem[start + _home(nb, hashes[rung])])
        if word != np.uint64(0) and (word & ~mask) == _tag(row, hashes[rung]):
            at = row[BASE] + 2 * (np.int64(word & mask) - 1)
            prefetch(mem, at)
            # Where the tokens before it and after it are.
            prefetch(mem, max(at - 14, row[BASE]))
            prefetch(mem, at + 14)


@njit(cache=True, nogil=True)
def _delete(mem, row, rungs, rung, bucket):
    """Free a bucket and move later ones of its cluster up, so that no probe meets a gap."""
    start, nb = _table(row, rung)
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
        home = _home(nb, _gram_hash(mem, row, np.int64(word & mask) - 1, rungs[rung]))
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
            if rung == 0:
                row[TAKEN] -= 1
    row[TAIL] = pos + 1


@njit(cache=True, nogil=True)
def store(mem, row, tokens):  # tokens uint32[n] or int32[n] that fit
    """Append tokens without indexing them. Not for a ring."""
    start = row[BASE] + 2 * row[KNOWN]
    for i in range(tokens.size):
        mem[start + 2 * i] = np.uint32(tokens[i])
    row[KNOWN] += tokens.size


@njit(cache=True, nogil=True)
def index_stored(mem, row, rungs, hashes, most):
    """Index at most ``most`` stored tokens, the oldest first; returns how many."""
    count = min(most, row[KNOWN] - row[HEAD])
    for _ in range(count):
        _index_head(mem, row, rungs, hashes)
    return count


@njit(cache=True, nogil=True)
def push(mem, row, rungs, hashes, token):  # token uint32, hashes uint64[R] scratch
    """Append one token and index it; a full ring evicts its oldest. Everything stored must be indexed."""
    if row[HEAD] - row[TAIL] >= row[LIMIT]:
        _evict_oldest(mem, row, rungs, hashes)
    pos = row[HEAD]
    if pos - row[ORIGIN] >= row[CAP]:
        row[ORIGIN] += row[CAP]
    mem[row[BASE] + 2 * (pos - row[ORIGIN])] = token
    row[KNOWN] = pos + 1
    _index_head(mem, row, rungs, hashes)


@njit(cache=True, nogil=True)
def _index_head(mem, row, rungs, hashes):
    pos = row[HEAD]
    base, cap = row[BASE], row[CAP]
    idx = pos - row[ORIGIN]
    link = np.int64(0)
    for rung in range(stack_hashes(mem, row, pos, rungs, hashes)):
        bucket, latest = find(mem, row, rungs, rung, hashes[rung], mem, row, idx)
        if latest >= 0:
            link = idx - latest if idx > latest else idx - latest + cap
        elif rung == 0:
            if 5 * row[TAKEN] >= 4 * row[NB1]:
                continue
            row[TAKEN] += 1
        mem[_table(row, rung)[0] + bucket] = np.uint32(_tag(row, hashes[rung]) | np.uint64(idx + 1))
    mem[base + 2 * idx + 1] = np.uint32(link)
    row[HEAD] = pos + 1


def rungs_for(options: SuffixIndexOptions) -> npt.NDArray[np.int64]:
    """n-gram lengths under which tokens are found, ascending."""
    shortest = min(options.min_match_tokens, MAX_RUNG)
    ladder = {shortest, *(rung for rung in _RUNGS if shortest < rung <= options.max_match_tokens)}
    return np.array(sorted(ladder), np.int64)
