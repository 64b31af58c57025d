"""A frozen corpus: finished outputs in one searchable block, built once and then only read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
from specctl.draft.checks import checked_ints

__all__ = [
    "FrozenCorpus",
    "build_block",
    "checked_rungs",
    "documents_in",
    "documents_of",
    "merge",
    "newest_within",
]

Ints = npt.NDArray[np.int32]
Rungs = npt.NDArray[np.int64]

_MOST_WORDS = 2**30
"""Of text, separators included: a position and its tag share the 32 bits of a bucket."""
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

    @property
    def bytes_used(self) -> int:
        return self.mem.nbytes + self.row.nbytes


@njit(cache=True, nogil=True)
def _push_all(mem, row, rungs, tokens, ends):  # tokens int32[n]; a separator follows if ends
    hashes = np.empty(rungs.size, np.uint64)
    for i in range(tokens.size):
        push(mem, row, rungs, hashes, np.uint32(tokens[i]))
    if ends:
        push(mem, row, rungs, hashes, np.uint32(SEPARATOR))


def build_block(documents: Iterable[Ints], rungs: Sequence[int] | Rungs) -> FrozenCorpus:
    """Index the documents (int32[n] each, the oldest first); empty ones are left out.

    Releases the GIL. ValueError: a negative id, another dtype than int32, or more than 2**30 words of text.
    """
    ladder = checked_rungs(rungs)
    parts = [part for part in map(_checked_document, documents) if part.size]
    words = sum(part.size + 1 for part in parts)
    if words > _MOST_WORDS:
        raise ValueError(f"documents: expected at most {_MOST_WORDS} tokens and separators, got {words}")
    cap = max(words, MIN_CAP)
    mem = np.zeros(block_words(cap, ladder), np.uint32)
    row = new_row(0, cap, ladder, is_ring=False)
    for part in parts:
        for start in range(0, part.size, _SLICE_TOKENS):
            end = start + _SLICE_TOKENS
            _push_all(mem, row, ladder, part[start:end], end >= part.size)
    mem.flags.writeable = False
    return FrozenCorpus(
        mem=mem,
        row=row,
        rungs=ladder,
        tokens=words - len(parts),
        documents=len(parts),
        largest_id=max((int(part.max()) for part in parts), default=-1),
    )


def documents_of(corpus: FrozenCorpus) -> Iterator[Ints]:
    """Every document, int32[n], the oldest first."""
    text = text_of(corpus.mem, 0, int(corpus.row[CAP]), 0, int(corpus.row[HEAD]))
    return documents_in(np.ascontiguousarray(text))


def documents_in(text: npt.NDArray[np.uint32]) -> Iterator[Ints]:
    """Views of what ends with SEPARATOR in a text."""
    start = 0
    for end in np.flatnonzero(text == SEPARATOR).tolist():
        yield text[start:end].view(np.int32)
        start = end + 1


def merge(corpora: Sequence[FrozenCorpus], max_bytes: int | None = None) -> FrozenCorpus:
    """One corpus of all, the oldest given first. Of equal documents the newest stays.

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
    return build_block(documents, rungs)


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


def checked_rungs(rungs: Sequence[int] | Rungs) -> Rungs:
    """int64[R]. ValueError unless ascending, from 1 to MAX_RUNG, and not empty."""
    lengths = [int(rung) for rung in rungs]
    is_ascending = lengths == sorted(set(lengths))
    if not lengths or not is_ascending or lengths[0] < 1 or lengths[-1] > MAX_RUNG:
        raise ValueError(f"rungs: expected ascending n-gram lengths from 1 to {MAX_RUNG}, got {lengths}")
    return np.array(lengths, np.int64)


def _checked_document(values: Ints) -> Ints:
    document = checked_ints("document", values)
    if int(document.min(initial=0)) < 0:
        raise ValueError("document: expected ids from 0 to 2147483647, got a negative one")
    return document


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
