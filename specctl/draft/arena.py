"""Texts of the active requests: one array for all, blocks of a few sizes, grown when needed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.chains import BASE, CAP, COMING, HEAD, ROW_WORDS, block_words, new_row, push

__all__ = ["RequestArena"]

_FIRST_CAP = 256
_DONE, _REFUSED = -1, -2


@njit(cache=True, nogil=True)
def _room(rows, slots, offsets, most_tokens):
    """_DONE where every slot has room, the slot that needs a larger block, or _REFUSED."""
    status = np.int64(_DONE)
    for i in range(slots.size):
        if not 0 <= slots[i] < rows.shape[0] or rows[slots[i], CAP] == 0 or offsets[i + 1] < offsets[i]:
            return np.int64(_REFUSED)
        rows[slots[i], COMING] = 0
    for i in range(slots.size):
        row = rows[slots[i]]
        row[COMING] += offsets[i + 1] - offsets[i]
        if row[HEAD] + row[COMING] > most_tokens:
            return np.int64(_REFUSED)
        if row[HEAD] + row[COMING] > row[CAP]:
            status = np.int64(slots[i])
    return status


@njit(cache=True, nogil=True)
def _extend_rows(arena, rows, rungs, most_tokens, slots, tokens, offsets):
    """All or nothing; _room's answer, and _REFUSED for a negative token."""
    for i in range(tokens.size):
        if tokens[i] < 0:
            return np.int64(_REFUSED)
    status = _room(rows, slots, offsets, most_tokens)
    if status != _DONE:
        return status
    hashes = np.empty(rungs.size, np.uint64)
    for i in range(slots.size):
        row = rows[slots[i]]
        for j in range(offsets[i], offsets[i + 1]):
            push(arena, row, rungs, hashes, np.uint32(tokens[j]))
    return status


@njit(cache=True, nogil=True)
def _push_words(arena, row, rungs, words):
    hashes = np.empty(rungs.size, np.uint64)
    for i in range(words.size):
        push(arena, row, rungs, hashes, words[i])


class RequestArena:
    """One text per slot. A block that is too small is replaced by one at least half as large again."""

    def __init__(self, max_requests: int, max_request_tokens: int, rungs: npt.NDArray[np.int64]) -> None:
        self._rungs = rungs
        self._caps = _block_caps(max_request_tokens)
        self._free: dict[int, list[int]] = {cap: [] for cap in self._caps}
        self._used_words = 0
        self.words = np.zeros(block_words(self._caps[0], rungs.size), np.uint32)
        self.rows = np.zeros((max_requests, ROW_WORDS), np.int64)

    @property
    def bytes_used(self) -> int:
        return self.words.nbytes + self.rows.nbytes

    def open(self, slot: int, expected_tokens: int) -> None:
        base, cap = self._take(expected_tokens)
        self.rows[slot] = new_row(base, cap, is_ring=False)

    def close(self, slot: int) -> None:
        row = self.rows[slot]
        self._free[int(row[CAP])].append(int(row[BASE]))
        row[:] = 0

    def text(self, slot: int) -> npt.NDArray[np.uint32]:
        base, head = int(self.rows[slot, BASE]), int(self.rows[slot, HEAD])
        return self.words[base : base + head]

    def extend(
        self, slots: npt.NDArray[np.int32], tokens: npt.NDArray[np.int32], offsets: npt.NDArray[np.int32]
    ) -> bool:
        """tokens[offsets[i]:offsets[i + 1]] to slots[i]. False, and nothing changed, if any is not legal."""
        while True:
            status = int(
                _extend_rows(self.words, self.rows, self._rungs, self._caps[-1], slots, tokens, offsets)
            )
            if status < 0:
                return status == _DONE
            self._grow(status, int(self.rows[status, COMING]))

    def _grow(self, slot: int, more_tokens: int) -> None:
        tokens = self.text(slot).copy()
        self.close(slot)
        self.open(slot, tokens.size + more_tokens)
        _push_words(self.words, self.rows[slot], self._rungs, tokens)

    def _take(self, tokens: int) -> tuple[int, int]:
        """A zeroed block: base and capacity."""
        cap = next(cap for cap in self._caps if cap >= tokens)
        words = block_words(cap, self._rungs.size)
        if self._free[cap]:
            base = self._free[cap].pop()
            self.words[base : base + words] = 0
            return base, cap
        base = self._used_words
        if base + words > self.words.size:
            larger = np.zeros(max(2 * self.words.size, base + words), np.uint32)
            larger[:base] = self.words[:base]
            self.words = larger
        self._used_words = base + words
        return base, cap


def _block_caps(max_request_tokens: int) -> list[int]:
    caps = []
    cap = _FIRST_CAP
    while cap < max_request_tokens:
        caps.append(cap)
        cap += cap // 2
    return [*caps, max_request_tokens]
