"""Texts of the active requests: one array for all, blocks of a few sizes, grown when needed.

A long prompt is stored at once and indexed in slices (``index_pending``); until its text is indexed to the
end, a request finds less of it.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.chains import (
    BASE,
    CAP,
    COMING,
    HEAD,
    KNOWN,
    ROW_WORDS,
    block_words,
    bucket_start,
    index_stored,
    new_row,
    store,
)

__all__ = ["RequestArena", "extend_rows"]

_FIRST_CAP = 256
_DONE, _REFUSED, _TWICE = -1, -2, -3
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_AT_ONCE_TOKENS = 1024
"""A text with no more than these tokens to index is indexed when they come."""


@njit(cache=True, nogil=True)
def _room(rows, slots, tokens, offsets, most_tokens):
    """_DONE where every slot has room, _TWICE where one also comes twice, the slot that needs a larger block,
    or _REFUSED."""
    for i in range(tokens.size):
        if tokens[i] < 0:
            return np.int64(_REFUSED)
    for i in range(slots.size):
        if not 0 <= slots[i] < rows.shape[0] or rows[slots[i], CAP] == 0 or offsets[i + 1] < offsets[i]:
            return np.int64(_REFUSED)
        rows[slots[i], COMING] = 0
    status = np.int64(_DONE)
    for i in range(slots.size):
        row = rows[slots[i]]
        if row[COMING] > 0 and status == _DONE:
            status = np.int64(_TWICE)
        row[COMING] += offsets[i + 1] - offsets[i]
        if row[KNOWN] + row[COMING] > most_tokens:
            return np.int64(_REFUSED)
        if row[KNOWN] + row[COMING] > row[CAP]:
            status = np.int64(slots[i])
    return status


@njit(cache=True, nogil=True)
def extend_rows(arena, rows, rungs, slots, tokens, offsets, first, last):
    """Rows first to last - 1; room and legality have been checked."""
    hashes = np.empty(rungs.size, np.uint64)
    for i in range(first, last):
        row = rows[slots[i]]
        store(arena, row, tokens[offsets[i] : offsets[i + 1]])
        if row[KNOWN] - row[HEAD] <= _AT_ONCE_TOKENS:
            index_stored(arena, row, rungs, hashes, row[KNOWN] - row[HEAD])


@njit(cache=True, nogil=True)
def _index_slice(arena, row, rungs, most):
    return index_stored(arena, row, rungs, np.empty(rungs.size, np.uint64), most)


class RequestArena:
    """One text per slot. A block that is too small is replaced by one at least half as large again."""

    def __init__(self, max_requests: int, max_request_tokens: int, rungs: npt.NDArray[np.int64]) -> None:
        self.rungs = rungs
        self._caps = _block_caps(max_request_tokens)
        self._free: dict[int, list[int]] = {cap: [] for cap in self._caps}
        self._used_words = 0
        self._pending: dict[int, None] = {}
        # Private: a shared anonymous map cannot grow.
        self._map = mmap.mmap(-1, max(4 * block_words(self._caps[0], rungs), 1 << 20), flags=_PRIVATE)
        self.words = np.frombuffer(self._map, np.uint32)
        self.rows = np.zeros((max_requests, ROW_WORDS), np.int64)

    @property
    def bytes_used(self) -> int:
        return self.words.nbytes + self.rows.nbytes

    @property
    def kernel_arrays(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """First arguments of the compiled functions. Not to be kept: growing moves the words."""
        return self.words, self.rows, self.rungs

    @property
    def has_pending(self) -> bool:
        """Whether a text waits for its slices."""
        return bool(self._pending)

    def open(self, slot: int, expected_tokens: int) -> None:
        base, cap = self._take(expected_tokens)
        self.rows[slot] = new_row(base, cap, self.rungs, is_ring=False)

    def close(self, slot: int) -> None:
        row = self.rows[slot]
        self._free[int(row[CAP])].append(int(row[BASE]))
        self._pending.pop(slot, None)
        row[:] = 0

    def text(self, slot: int, start: int = 0) -> npt.NDArray[np.uint32]:
        """A copy of the slot's tokens from ``start`` on."""
        base, known = int(self.rows[slot, BASE]), int(self.rows[slot, KNOWN])
        return self.words[base + start : base + known].copy()

    def make_room(
        self, slots: npt.NDArray[np.int32], tokens: npt.NDArray[np.int32], offsets: npt.NDArray[np.int32]
    ) -> bool | None:
        """Grow blocks until tokens[offsets[i]:offsets[i + 1]] fit each slot.

        None if any is not legal; else whether no slot comes twice, so that threads may share the rows.
        """
        while True:
            status = int(_room(self.rows, slots, tokens, offsets, self._caps[-1]))
            if status < 0:
                return None if status == _REFUSED else status == _DONE
            self._grow(status, int(self.rows[status, COMING]))

    def note_pending(self, slot: int) -> None:
        """After tokens were stored: what was not indexed at once waits for slices."""
        if self.rows[slot, HEAD] < self.rows[slot, KNOWN]:
            self._pending[slot] = None

    def index_pending(self, most_tokens: int) -> int:
        """Index at most so many tokens of texts that wait, the first that came first; how many were done."""
        done = 0
        while self._pending and done < most_tokens:
            slot = next(iter(self._pending))
            row = self.rows[slot]
            done += int(_index_slice(self.words, row, self.rungs, most_tokens - done))
            if row[HEAD] == row[KNOWN]:
                del self._pending[slot]
        return done

    def _grow(self, slot: int, more_tokens: int) -> None:
        tokens = self.text(slot)
        self.close(slot)
        self.open(slot, tokens.size + more_tokens)
        everything = np.array([0, tokens.size], np.int32)
        extend_rows(*self.kernel_arrays, np.array([slot], np.int32), tokens.view(np.int32), everything, 0, 1)
        self.note_pending(slot)

    def _take(self, tokens: int) -> tuple[int, int]:
        """A block whose buckets are zero: base and capacity."""
        cap = next(cap for cap in self._caps if cap >= tokens)
        words = block_words(cap, self.rungs)
        if self._free[cap]:
            base = self._free[cap].pop()
            self.words[base + bucket_start(cap) : base + words] = 0
            return base, cap
        base = self._used_words
        if base + words > self.words.size:
            # Pages move, nothing is copied, and fresh ones are zero.
            self.words = np.empty(0, np.uint32)
            self._map.resize(4 * max(len(self._map) // 2, base + words))
            self.words = np.frombuffer(self._map, np.uint32)
        self._used_words = base + words
        return base, cap


def _block_caps(max_request_tokens: int) -> list[int]:
    caps = []
    cap = _FIRST_CAP
    while cap < max_request_tokens:
        caps.append(cap)
        cap += cap // 2
    return [*caps, max_request_tokens]
