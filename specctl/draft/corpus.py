"""The bounded corpora of finished outputs, one ring for each namespace, all in one array.

A finished output waits here until slices have indexed it. A full ring gives up its oldest outputs; one that
drafts came from since it was written is written once more instead (second chance, as in the CLOCK algorithm).
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.chains import (
    BASE,
    HEAD,
    LIMIT,
    MIN_CAP,
    ROW_WORDS,
    SEPARATOR,
    TAIL,
    block_words,
    index_of,
    new_row,
    push,
    text_of,
)
from specctl.draft.options import SHARED
from specctl.draft.proposal import BLOCK_TOKENS

__all__ = ["LiveCorpora"]

Ints = npt.NDArray[np.int32]
_WAITING_SHARE = 128
"""One part in 128 of the bytes is for outputs that wait."""
_RESCUE_HITS = 2
_RESCUE_SHARE = 0.5
"""Rescued tokens for each new one, at most."""


@njit(cache=True, nogil=True)
def _append(mem, row, hits, rungs, tokens, ends):  # tokens int32[n]
    hashes = np.empty(rungs.size, np.uint64)
    for i in range(tokens.size + (1 if ends else 0)):
        push(mem, row, rungs, hashes, np.uint32(tokens[i] if i < tokens.size else SEPARATOR))
        idx = index_of(row, row[HEAD] - 1)
        if idx % BLOCK_TOKENS == 0:
            hits[idx // BLOCK_TOKENS] = 0


@njit(cache=True, nogil=True)
def _document(mem, row, hits, pos, out):
    """The document at pos: its tokens into out; (tokens, hits of its blocks). -1 where out is too small."""
    total = 0
    count = 0
    while pos < row[HEAD]:
        idx = index_of(row, pos)
        token = mem[row[BASE] + 2 * idx]
        if count == 0 or idx % BLOCK_TOKENS == 0:
            total += hits[idx // BLOCK_TOKENS]
        if token == SEPARATOR:
            return count, total
        if count == out.size:
            return -1, 0
        out[count] = token
        count += 1
        pos += 1
    return -1, 0


def _largest_cap(words: int, rungs: npt.NDArray[np.int64]) -> int:
    """The largest ring whose block and hits take at most so many words."""
    low, high = 0, 2**30
    while low < high:
        cap = (low + high + 1) // 2
        fits = block_words(cap, rungs) + cap // BLOCK_TOKENS // 4 + 2 <= words
        low, high = (cap, high) if fits else (low, cap - 1)
    return low


class LiveCorpora:
    """Rings of equal size, never above ``max_bytes`` together."""

    def __init__(self, max_bytes: int, rungs: npt.NDArray[np.int64], max_namespaces: int = 1) -> None:
        self.rungs = rungs
        words = max_bytes // 4 - 2 * ROW_WORDS * max_namespaces
        self._most_waiting_tokens = words // _WAITING_SHARE
        cap = self._fitting_cap((words - self._most_waiting_tokens) // max_namespaces, max_bytes)
        self._block_words = block_words(cap, rungs)
        # Memory is touched when a namespace appears, not before.
        self.mem = np.zeros(max_namespaces * self._block_words, np.uint32)
        self.rows = np.zeros((max_namespaces, ROW_WORDS), np.int64)
        self.hits = np.zeros((max_namespaces, cap // BLOCK_TOKENS + 1), np.uint8)
        self._cap = cap
        self._names: dict[str, int] = {}
        self._users = [0] * max_namespaces
        self.waiting: deque[tuple[int, Ints]] = deque()
        self._waiting_tokens = 0
        self._indexed_of_first = 0
        self._scanned = [0] * max_namespaces
        self._credit = [0.0] * max_namespaces
        self._scratch = np.empty(min(cap, 4096), np.int32)
        self.rescued_tokens = 0
        self._forgotten_tokens = 0

    def _fitting_cap(self, words: int, max_bytes: int) -> int:
        cap = _largest_cap(words, self.rungs)
        if cap < MIN_CAP:
            raise ValueError(f"index_bytes: expected more for each namespace, got {max_bytes} in all")
        return cap

    def enter(self, name: str) -> int:
        """A request of this namespace starts: its corpus, or -1 while all corpora serve other namespaces.

        The first corpus is the shared namespace's. Of the others, a new namespace takes the one whose
        requests ended first; without others it has none.
        """
        space = self._names.pop(name, None)
        if space is None:
            space = self._take(name)
        if space < 0:
            return -1
        self._names[name] = space
        self._users[space] += 1
        return space

    def leave(self, space: int) -> None:
        if space >= 0:
            self._users[space] -= 1

    def _take(self, name: str) -> int:
        others = {other: space for other, space in self._names.items() if other != SHARED}
        if name == SHARED:
            space = 0
        elif len(others) + 1 < self.rows.shape[0]:
            space = len(others) + 1
        else:
            idle = next((other for other, space in others.items() if self._users[space] == 0), None)
            if idle is None:
                return -1
            space = self._names.pop(idle)
            self._drop_waiting(space)
            self._forgotten_tokens += int(self.rows[space, HEAD])
        block = self.mem[space * self._block_words : (space + 1) * self._block_words]
        block.fill(0)
        self.hits[space] = 0
        self.rows[space] = new_row(space * self._block_words, self._cap, self.rungs, is_ring=True)
        self._scanned[space], self._credit[space] = 0, 0.0
        return space

    def _drop_waiting(self, space: int) -> None:
        if self.waiting and self.waiting[0][0] == space:
            self._indexed_of_first = 0
        kept = [item for item in self.waiting if item[0] != space]
        self.waiting.clear()
        self.waiting.extend(kept)
        self._waiting_tokens = sum(output.size for _, output in self.waiting)

    @property
    def bytes_used(self) -> int:
        """What is reserved; 4 bytes for each waiting token on top."""
        return self.mem.nbytes + self.rows.nbytes + self.hits.nbytes + 4 * self._waiting_tokens

    @property
    def indexed_tokens(self) -> int:
        return int((self.rows[:, HEAD] - self.rows[:, TAIL]).sum())

    @property
    def evicted_tokens(self) -> int:
        return int(self.rows[:, TAIL].sum()) + self._forgotten_tokens

    @property
    def waiting_tokens(self) -> int:
        return self._waiting_tokens

    def text_since(self, position: int, name: str) -> tuple[npt.NDArray[np.uint32], int]:
        """(copy of the indexed outputs from a position on, up to the last SEPARATOR; the position after)."""
        space = self._names.get(name)
        if space is None:
            return np.empty(0, np.uint32), 0
        row = self.rows[space]
        head = int(row[HEAD])
        # A position from before the namespace got its ring is none of its own.
        start = max(position if position <= head else 0, int(row[TAIL]))
        at, end = start % self._cap, head % self._cap
        ring = text_of(self.mem, int(row[BASE]), self._cap, 0, self._cap)
        text = (
            ring[at:end].copy()
            if at <= end and head - start < self._cap
            else np.append(ring[at:], ring[:end])
        )
        ends = np.flatnonzero(text == SEPARATOR)
        size = int(ends[-1]) + 1 if ends.size else 0
        return text[:size], start + size

    def add(self, space: int, output: Ints) -> None:
        """Queue a finished output. What does not fit the queue is indexed at once."""
        output = output[-(int(self.rows[space, LIMIT]) - 1) :]
        if output.size == 0:
            return
        while self.waiting and self._waiting_tokens + output.size > self._most_waiting_tokens:
            self.index_waiting(self.waiting[0][1].size)
        self._credit[space] += _RESCUE_SHARE * output.size
        if output.size > self._most_waiting_tokens:
            self._append(space, output, ends=True)
            return
        self.waiting.append((space, output))
        self._waiting_tokens += output.size

    def index_waiting(self, most_tokens: int) -> int:
        """Index up to ``most_tokens`` of the waiting outputs, the oldest first; how many were done."""
        done = 0
        while done < most_tokens and self.waiting:
            space, first = self.waiting[0]
            start = self._indexed_of_first
            part = first[start : start + most_tokens - done]
            ends = start + part.size == first.size
            self._append(space, part, ends=ends)
            done += part.size
            self._indexed_of_first += part.size
            if ends:
                self.waiting.popleft()
                self._waiting_tokens -= first.size
                self._indexed_of_first = 0
        return done

    def _append(self, space: int, tokens: Ints, *, ends: bool) -> None:
        row = self.rows[space]
        room = int(row[LIMIT] - (row[HEAD] - row[TAIL]))
        if tokens.size + 1 > room:
            self._rescue(space, int(row[TAIL]) + tokens.size + 1 - room)
        _append(self.mem, row, self.hits[space], self.rungs, tokens, ends)

    def _rescue(self, space: int, end: int) -> None:
        """Before the outputs below position ``end`` go: those that drafts came from queue up again."""
        row, at = self.rows[space], max(self._scanned[space], int(self.rows[space, TAIL]))
        while at < end:
            size, hits = _document(self.mem, row, self.hits[space], at, self._scratch)
            if size < 0:
                break
            fits = self._waiting_tokens + size <= self._most_waiting_tokens and size <= self._credit[space]
            if hits >= _RESCUE_HITS and size > 0 and fits:
                self.waiting.append((space, self._scratch[:size].copy()))
                self._waiting_tokens += size
                self._credit[space] -= size
                self.rescued_tokens += size
            at += size + 1
        self._scanned[space] = at
