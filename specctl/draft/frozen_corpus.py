"""A frozen corpus: finished outputs in one searchable block, built once and then only read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import xxhash
from numba import njit

from specctl.draft.chains import (
    CAP,
    HEAD,
    MAX_RUNG,
    MIN_CAP,
    SEPARATOR,
    block_words,
    new_row,
    push,
    text_of,
)
from specctl.draft.document_text import Text, packed
from specctl.draft.outcomes import Counts, added

__all__ = [
    "FrozenCorpus",
    "build_block",
    "build_text",
    "checked_rungs",
    "documents_in",
    "documents_of",
    "merge",
    "newest_within",
    "packed_of",
    "words_within",
]

Ints = npt.NDArray[np.int32]
Rungs = npt.NDArray[np.int64]

_MOST_WORDS = 2**30
"""Of text, separators included: a position and its tag share the 32 bits of a bucket."""
_SEPARATOR = np.uint32(SEPARATOR)
_LARGEST_ID = np.uint32(2**31 - 1)
_SLICE_TOKENS = 2**20
"""Indexed by one compiled call, so that Ctrl-C is heard."""


@dataclass(frozen=True, eq=False)
class FrozenCorpus:
    """``chains`` can search it. ``mem`` is never writable.

    mem    uint32[block_words(cap, rungs)]
    row    int64[ROW_WORDS]
    rungs  int64[R], ascending n-gram lengths
    """

    mem: npt.NDArray[np.uint32]
    row: npt.NDArray[np.int64]
    rungs: Rungs
    tokens: int  # without separators
    documents: int
    largest_id: int  # of any token, -1 = no tokens; a model with fewer ids must not be given drafts from here
    outcomes: Counts = field(default_factory=dict)

    @property
    def bytes_used(self) -> int:
        return self.mem.nbytes + self.row.nbytes


@njit(cache=True, nogil=True)
def _push_text(mem, row, rungs, text):  # text uint32[n]; largest id, or -2 where a word is no id
    hashes = np.empty(rungs.size, np.uint64)
    largest = np.int64(-1)
    for i in range(text.size):
        if text[i] != _SEPARATOR:
            if text[i] > _LARGEST_ID:
                return np.int64(-2)
            largest = max(largest, np.int64(text[i]))
        push(mem, row, rungs, hashes, text[i])
    return largest


def build_block(documents: Iterable[Ints], rungs: Sequence[int] | Rungs) -> FrozenCorpus:
    """Index the documents (int32[n] each, the oldest first); empty ones are left out.

    ValueError: a negative id, another dtype than int32, or more than 2**30 words of text.
    """
    return build_text(packed(documents), rungs)


def build_text(text: Text, rungs: Sequence[int] | Rungs) -> FrozenCorpus:
    """Index a packed text (``document_text``), uint32[n], the oldest document first. Releases the GIL.

    ValueError: a word that is no id, no SEPARATOR at the end, or more than 2**30 words.
    """
    ladder = checked_rungs(rungs)
    if text.size > _MOST_WORDS:
        raise ValueError(f"documents: expected at most {_MOST_WORDS} tokens and separators, got {text.size}")
    if text.size and text[-1] != _SEPARATOR:
        raise ValueError(f"text: expected a separator at its end, got {text[-1]}")
    cap = max(text.size, MIN_CAP)
    mem = np.zeros(block_words(cap, ladder), np.uint32)
    row = new_row(0, cap, ladder, is_ring=False)
    largest_id = -1
    for start in range(0, text.size, _SLICE_TOKENS):
        largest = _push_text(mem, row, ladder, text[start : start + _SLICE_TOKENS])
        if largest < -1:
            raise ValueError("text: expected ids from 0 to 2147483647, got a larger one")
        largest_id = max(largest_id, int(largest))
    mem.flags.writeable = False
    documents = int(np.count_nonzero(text == _SEPARATOR))
    return FrozenCorpus(
        mem=mem,
        row=row,
        rungs=ladder,
        tokens=text.size - documents,
        documents=documents,
        largest_id=largest_id,
    )


def packed_of(corpus: FrozenCorpus) -> Text:
    """Its documents as they were packed, uint32[n], a copy."""
    text = text_of(corpus.mem, 0, int(corpus.row[CAP]), 0, int(corpus.row[HEAD]))
    return np.ascontiguousarray(text)


def documents_of(corpus: FrozenCorpus) -> Iterator[Ints]:
    """Every document, int32[n], the oldest first."""
    return documents_in(packed_of(corpus))


def documents_in(text: npt.NDArray[np.uint32]) -> Iterator[Ints]:
    """Views of what ends with SEPARATOR in a text."""
    start = 0
    for end in np.flatnonzero(text == SEPARATOR).tolist():
        yield text[start:end].view(np.int32)
        start = end + 1


def merge(corpora: Sequence[FrozenCorpus], max_bytes: int | None = None) -> FrozenCorpus:
    """One corpus of all, the oldest given first. Of equal documents the newest stays; outcomes are added.

    ``max_bytes`` bounds the block; what is oldest is left out. ValueError: no corpora, or unequal rungs.
    """
    if not corpora:
        raise ValueError("corpora: expected at least one, got none")
    rungs = corpora[0].rungs
    for corpus in corpora:
        if not np.array_equal(corpus.rungs, rungs):
            raise ValueError(f"rungs: expected {rungs.tolist()} in all, got {corpus.rungs.tolist()}")
    documents = _without_copies([part for corpus in corpora for part in documents_of(corpus)])
    if max_bytes is not None:
        documents = newest_within(documents, rungs, max_bytes)
    return replace(build_block(documents, rungs), outcomes=added(corpus.outcomes for corpus in corpora))


def newest_within(documents: Sequence[Ints], rungs: Sequence[int] | Rungs, max_bytes: int) -> list[Ints]:
    """The last documents whose block has at most max_bytes bytes; one too long for any block is passed over.

    ValueError if not even the smallest block fits.
    """
    ladder = checked_rungs(rungs)
    least = _block_bytes(MIN_CAP, ladder)
    if max_bytes < least:
        raise ValueError(f"max_bytes: expected at least {least}, got {max_bytes}")
    kept: list[Ints] = []
    words = 0
    for part in reversed(documents):
        if _block_bytes(part.size + 1, ladder) > max_bytes:
            continue
        if _block_bytes(words + part.size + 1, ladder) > max_bytes:
            break
        kept.append(part)
        words += part.size + 1
    return kept[::-1]


def words_within(rungs: Sequence[int] | Rungs, max_bytes: int) -> int:
    """The most words of text whose block takes at most max_bytes; 0 where the smallest block takes more."""
    ladder = checked_rungs(rungs)
    low, high = 0, min(max_bytes // 8, _MOST_WORDS) + 1  # a word of text takes two of the block and more
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _block_bytes(middle, ladder) <= max_bytes else (low, middle)
    return low


def checked_rungs(rungs: Sequence[int] | Rungs) -> Rungs:
    """int64[R]. ValueError unless ascending, from 1 to MAX_RUNG, and not empty."""
    lengths = [int(rung) for rung in rungs]
    is_ascending = lengths == sorted(set(lengths))
    if not lengths or not is_ascending or lengths[0] < 1 or lengths[-1] > MAX_RUNG:
        raise ValueError(f"rungs: expected ascending n-gram lengths from 1 to {MAX_RUNG}, got {lengths}")
    return np.array(lengths, np.int64)


def _block_bytes(words: int, rungs: Rungs) -> int:
    return 4 * int(block_words(max(words, MIN_CAP), rungs))


def _without_copies(documents: Sequence[Ints]) -> list[Ints]:
    """Told apart by 128 bits of a hash, so that the texts are not held twice."""
    seen: set[bytes] = set()
    kept: list[Ints] = []
    for part in reversed(documents):
        digest = xxhash.xxh3_128_digest(part.data)
        if digest not in seen:
            seen.add(digest)
            kept.append(part)
    return kept[::-1]
