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
    fetch_buckets,
    fetch_ends,
    index_stored,
    new_row,
    stack_hashes,
    store,
    text_of,
)
from specctl.draft.memory import State
from specctl.draft.status import DONE, LATER, REFUSED, TWICE
from specctl.draft.tables import AHEAD, ARENA, ROWS, RUNGS, requests_of

__all__ = ["AT_ONCE_TOKENS", "RequestArena", "extend_one", "extend_rows"]

_FIRST_CAP = 256
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
AT_ONCE_TOKENS = 1024
"""A text with no more than these tokens to index is indexed when they come."""


@njit(cache=True, nogil=True)
def _room(rows, slots, tokens, offsets, most_tokens):
    """DONE where every slot has room, TWICE where one also comes twice, the slot that needs a larger block,
    or REFUSED."""
    for i in range(tokens.size):
        if tokens[i] < 0:
            return np.int64(REFUSED)
    for i in range(slots.size):
        if not 0 <= slots[i] < rows.shape[0] or rows[slots[i], CAP] == 0 or offsets[i + 1] < offsets[i]:
            return np.int64(REFUSED)
        rows[slots[i], COMING] = 0
    status = np.int64(DONE)
    for i in range(slots.size):
        row = rows[slots[i]]
        if row[COMING] > 0 and status == DONE:
            status = np.int64(TWICE)
        row[COMING] += offsets[i + 1] - offsets[i]
        if row[KNOWN] + row[COMING] > most_tokens:
            return np.int64(REFUSED)
        if row[KNOWN] + row[COMING] > row[CAP]:
            status = np.int64(slots[i])
    return status


@njit(cache=True, nogil=True)
def extend_one(address, slot, tokens, most_tokens):
    """tokens int32[n]. DONE; LATER: slices must index them; else nothing was done: REFUSED, or the slot,
    which needs a larger block."""
    arena, rows, rungs = requests_of(address)
    if not 0 <= slot < rows.shape[0] or rows[slot, CAP] == 0:
        return np.int64(REFUSED)
    for i in range(tokens.size):
        if tokens[i] < 0:
            return np.int64(REFUSED)
    row = rows[slot]
    if row[KNOWN] + tokens.size > most_tokens:
        return np.int64(REFUSED)
    if row[KNOWN] + tokens.size > row[CAP]:
        row[COMING] = tokens.size
        return np.int64(slot)
    store(arena, row, tokens)
    _index_new(arena, row, rungs, np.empty(rungs.size, np.uint64))
    return np.int64(DONE) if row[HEAD] == row[KNOWN] else np.int64(LATER)


@njit(cache=True, nogil=True)
def _index_new(arena, row, rungs, hashes):
    if row[KNOWN] - row[HEAD] <= AT_ONCE_TOKENS:
        index_stored(arena, row, rungs, hashes, row[KNOWN] - row[HEAD])


@njit(cache=True, nogil=True)
def extend_rows(address, slots, tokens, offsets, first, last):
    """Rows first to last - 1; room and legality have been checked."""
    arena, rows, rungs = requests_of(address)
    hashes = np.empty(rungs.size, np.uint64)
    for start in range(first, last, AHEAD):
        end = min(start + AHEAD, last)
        fetch_ends(arena, rows, slots, start, end)
        for i in range(start, end):
            own = rows[slots[i]]
            store(arena, own, tokens[offsets[i] : offsets[i + 1]])
            for pos in range(max(own[HEAD], own[KNOWN] - 4), own[KNOWN]):
                fetch_buckets(arena, own, hashes, stack_hashes(arena, own, pos, rungs, hashes))
        for i in range(start, end):
            _index_new(arena, rows[slots[i]], rungs, hashes)


@njit(cache=True, nogil=True)
def _index_slice(arena, row, rungs, most):
    return index_stored(arena, row, rungs, np.empty(rungs.size, np.uint64), most)


class RequestArena:
    """One text per slot. A block that is too small is replaced by one at least half as large again."""

    def __init__(
        self, state: State, max_requests: int, max_request_tokens: int, rungs: npt.NDArray[np.int64]
    ) -> None:
        self._state = state
        self.rungs = rungs
        self.most_tokens = max_request_tokens
        self._caps = _block_caps(max_request_tokens)
        self._free: dict[int, list[int]] = {cap: [] for cap in self._caps}
        self._used_words = 0
        self.pending: dict[int, None] = {}
        """Slots whose text waits for its slices, in their order."""
        # Private: a shared anonymous map cannot grow.
        self._map = mmap.mmap(-1, max(4 * block_words(self._caps[0], rungs), 1 << 20), flags=_PRIVATE)
        self._see_words()
        self.rows = np.zeros((max_requests, ROW_WORDS), np.int64)
        state.put(ROWS, self.rows)
        state.put(RUNGS, rungs)

    def _see_words(self) -> None:
        self.words = np.frombuffer(self._map, np.uint32)
        self._state.put(ARENA, self.words)

    @property
    def bytes_used(self) -> int:
        return self.words.nbytes + self.rows.nbytes

    def open(self, slot: int, expected_tokens: int) -> None:
        base, cap = self._take(expected_tokens)
        self.rows[slot] = new_row(base, cap, self.rungs, is_ring=False)

    def close(self, slot: int) -> None:
        row = self.rows[slot]
        self._free[int(row[CAP])].append(int(row[BASE]))
        self.pending.pop(slot, None)
        row[:] = 0

    def text(self, slot: int, start: int = 0) -> npt.NDArray[np.uint32]:
        """A copy of the slot's tokens from ``start`` on."""
        base, cap, known = (int(self.rows[slot, word]) for word in (BASE, CAP, KNOWN))
        return text_of(self.words, base, cap, start, known).copy()

    def make_room(
        self, slots: npt.NDArray[np.int32], tokens: npt.NDArray[np.int32], offsets: npt.NDArray[np.int32]
    ) -> bool | None:
        """Grow blocks until tokens[offsets[i]:offsets[i + 1]] fit each slot.

        None if any is not legal; else whether no slot comes twice, so that threads may share the rows.
        """
        while True:
            status = int(_room(self.rows, slots, tokens, offsets, self._caps[-1]))
            if status < 0:
                return None if status == REFUSED else status == DONE
            self.grow(status, int(self.rows[status, COMING]))

    def note_pending(self, slot: int) -> None:
        """After tokens were stored: what was not indexed at once waits for slices."""
        if self.rows[slot, HEAD] < self.rows[slot, KNOWN]:
            self.pending[slot] = None

    def index_pending(self, most_tokens: int) -> int:
        """Index at most so many tokens of texts that wait, the first that came first; how many were done."""
        done = 0
        while self.pending and done < most_tokens:
            slot = next(iter(self.pending))
            row = self.rows[slot]
            done += int(_index_slice(self.words, row, self.rungs, most_tokens - done))
            if row[HEAD] == row[KNOWN]:
                del self.pending[slot]
        return done

    def grow(self, slot: int, more_tokens: int) -> None:
        """Move the slot's text to a block with room for so many tokens more."""
        tokens = self.text(slot)
        self.close(slot)
        self.open(slot, tokens.size + more_tokens)
        extend_one(self._state.address, slot, tokens.view(np.int32), self.most_tokens)
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
            self._state.drop(ARENA)
            self._map.resize(4 * max(len(self._map) // 2, base + words))
            self._see_words()
        self._used_words = base + words
        return base, cap


def _block_caps(max_request_tokens: int) -> list[int]:
    caps = []
    cap = _FIRST_CAP
    while cap < max_request_tokens:
        caps.append(cap)
        cap += cap // 2
    return [*caps, max_request_tokens]
