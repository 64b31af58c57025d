"""The bounded corpus of finished outputs. A finished output waits here until steps have indexed it."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.chains import (
    HEAD,
    MAX_RUNG,
    MIN_CAP,
    ROW_WORDS,
    SEPARATOR,
    TAIL,
    block_words,
    new_row,
    push,
)

__all__ = ["Corpus"]

_WAITING_SHARE = 16
"""One sixteenth of the bytes is for outputs that wait."""


@njit(cache=True, nogil=True)
def _append(mem, row, rungs, tokens, ends):  # tokens int32[n]
    hashes = np.empty(rungs.size, np.uint64)
    for i in range(tokens.size):
        push(mem, row, rungs, hashes, np.uint32(tokens[i]))
    if ends:
        push(mem, row, rungs, hashes, np.uint32(SEPARATOR))


class Corpus:
    """A ring of finished outputs, the oldest tokens evicted first, never above ``max_bytes``."""

    def __init__(self, max_bytes: int, rungs: npt.NDArray[np.int64]) -> None:
        self._rungs = rungs
        self._waiting: deque[npt.NDArray[np.int32]] = deque()
        self._waiting_tokens = 0
        self._indexed_of_first = 0
        words = (max_bytes - 8 * ROW_WORDS) // 4
        self._most_waiting_tokens = words // _WAITING_SHARE
        cap = self._fitting_cap(words - self._most_waiting_tokens)
        self.mem = np.zeros(block_words(cap, rungs.size), np.uint32)
        # Touched now: a fresh page faults on its first write, which would otherwise be inside a step.
        self.mem.fill(0)
        self.row = new_row(0, cap, is_ring=True)
        self._window_tokens = cap - MAX_RUNG

    def _fitting_cap(self, words: int) -> int:
        cap = int(words / (1 + 2.5 * self._rungs.size))
        if cap < MIN_CAP:
            least = 4 * _WAITING_SHARE * block_words(MIN_CAP + 1, self._rungs.size) // (_WAITING_SHARE - 1)
            raise ValueError(f"index_bytes: expected at least {least + 8 * ROW_WORDS}, got {4 * words}")
        return min(cap, 2**32 // 4)

    @property
    def bytes_used(self) -> int:
        return self.mem.nbytes + self.row.nbytes + 4 * self._waiting_tokens

    @property
    def indexed_tokens(self) -> int:
        return int(self.row[HEAD] - self.row[TAIL])

    @property
    def evicted_tokens(self) -> int:
        return int(self.row[TAIL])

    @property
    def waiting_tokens(self) -> int:
        return self._waiting_tokens

    def add(self, output: npt.NDArray[np.int32]) -> None:
        """Queue a copy of a finished output. What does not fit the queue is indexed at once."""
        output = output[-(self._window_tokens - 1) :]
        if output.size == 0:
            return
        while self._waiting and self._waiting_tokens + output.size > self._most_waiting_tokens:
            self.index_waiting(self._waiting[0].size)
        if output.size > self._most_waiting_tokens:
            _append(self.mem, self.row, self._rungs, output, True)
            return
        self._waiting.append(output.copy())
        self._waiting_tokens += output.size

    def index_waiting(self, most_tokens: int) -> None:
        """Index up to ``most_tokens`` of the waiting outputs, the oldest first."""
        while most_tokens > 0 and self._waiting:
            first = self._waiting[0]
            start = self._indexed_of_first
            part = first[start : start + most_tokens]
            ends = start + part.size == first.size
            _append(self.mem, self.row, self._rungs, part, ends)
            most_tokens -= part.size
            self._indexed_of_first += part.size
            if ends:
                self._waiting.popleft()
                self._waiting_tokens -= first.size
                self._indexed_of_first = 0
