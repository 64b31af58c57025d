"""Where compiled calls write their drafts, and the views of it that callers get."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specctl.draft import tables
from specctl.draft.memory import State
from specctl.draft.options import DraftBatch

__all__ = ["Outputs"]

_MOST_SHAPES = 64
"""Of batches whose views are kept: making them takes as long as a proposal."""
Draft = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


class Outputs:
    """One memory for the drafts of every call, and scratch memory for every thread."""

    def __init__(self, state: State, threads: int, rows: int, width: int) -> None:
        self._state, self._threads = state, threads
        self._batches: dict[tuple[int, int], DraftBatch] = {}
        self.make_room(rows, width)

    def make_room(self, rows: int, width: int) -> None:
        """For a batch of this shape. Earlier views keep their memory and are written no more."""
        tokens, probs = np.zeros(rows * width, np.int32), np.zeros(rows * width, np.float32)
        heads = np.zeros(3 * rows, np.int32)
        scratch = np.zeros((self._threads, tables.scratch_words(width)), np.int64)
        for place, array in (
            (tables.TOKENS, tokens), (tables.PROBS, probs), (tables.HEADS, heads), (tables.SCRATCH, scratch),
        ):  # fmt: skip
            self._state.put(place, array)
        self._arrays = tokens, probs, heads
        self.drafts: list[Draft] = [(tokens[:n], probs[:n]) for n in range(width + 1)]
        """By length: the draft of a call for one request."""
        self._batches.clear()

    def batch(self, rows: int, width: int) -> DraftBatch:
        """What a call for so many requests with budgets up to ``width`` has written."""
        return self._batches.get((rows, width)) or self._new_batch(rows, width)

    def _new_batch(self, rows: int, width: int) -> DraftBatch:
        if len(self._batches) >= _MOST_SHAPES:
            self._batches.clear()
        tokens, probs, heads = self._arrays
        batch = self._batches[rows, width] = DraftBatch(
            tokens[: rows * width].reshape(rows, width),
            probs[: rows * width].reshape(rows, width),
            heads[: 3 * rows].reshape(3, rows),
        )
        return batch
