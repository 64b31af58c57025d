"""Which arrays the compiled calls of the suffix index work on: their places in its ``State``."""

from __future__ import annotations

import numpy as np
from numba import njit

from specctl.draft.chains import MAX_RUNG
from specctl.draft.gather import CANDIDATES
from specctl.draft.memory import columns_at, matrix_at, part_at, size_at, state_words, vector_at

__all__ = [
    "AHEAD",
    "ARENA",
    "CHANCES",
    "CORPORA",
    "CORPUS_ROWS",
    "COUNTERS",
    "FROZEN",
    "FROZEN_ROW",
    "HEADS",
    "HITS",
    "LESSONS",
    "ODDS",
    "OUTCOMES",
    "PLACES",
    "PROBS",
    "READS_FROZEN",
    "ROWS",
    "RUNGS",
    "SCRATCH",
    "SETTINGS",
    "SPACES",
    "TOKENS",
    "corpora_of",
    "have_room",
    "lessons_of",
    "outputs_of",
    "requests_of",
    "rule_of",
    "scratch_of",
    "scratch_words",
]

ARENA, ROWS, RUNGS, SETTINGS, CHANCES, COUNTERS = range(6)
CORPORA, CORPUS_ROWS, HITS, SPACES, FROZEN, FROZEN_ROW, READS_FROZEN = range(6, 13)
TOKENS, PROBS, HEADS, SCRATCH, LESSONS, OUTCOMES, ODDS = range(13, 20)
PLACES = 20
AHEAD = 16
"""Rows whose memory is fetched together: it arrives while others are worked on."""


@njit(cache=True, nogil=True)
def requests_of(address):
    """Texts of the requests: uint32[...], int64[max_requests, ROW_WORDS], rungs int64[R] of every text."""
    words = state_words(address, PLACES)
    return (
        vector_at(words, ARENA, np.uint32),
        matrix_at(words, ROWS, np.int64),
        vector_at(words, RUNGS, np.int64),
    )


@njit(cache=True, nogil=True)
def rule_of(address):
    """settings float64[7]: least and most match, spec factor and offset, visits, enough, least probability;
    chances float32[2 * CLASSES, ENTRIES] of lessons; odds float32[PLACES] of ``token_odds``; counters
    int64[threads, len(COUNTERS)] added to."""
    words = state_words(address, PLACES)
    return (
        vector_at(words, SETTINGS, np.float64),
        matrix_at(words, CHANCES, np.float32),
        vector_at(words, ODDS, np.float32),
        matrix_at(words, COUNTERS, np.int64),
    )


@njit(cache=True, nogil=True)
def lessons_of(address):
    """lessons int64[max_requests, LESSON_WORDS]; outcomes int32[threads, OUTCOME_WORDS] added to."""
    words = state_words(address, PLACES)
    return matrix_at(words, LESSONS, np.int64), matrix_at(words, OUTCOMES, np.int32)


@njit(cache=True, nogil=True)
def corpora_of(address):
    """Live corpora uint32[...], int64[namespaces, ROW_WORDS], hits uint8[namespaces, blocks] added to,
    spaces int32[max_requests], the namespace of a slot, -1 = no corpus; a frozen corpus uint32[...],
    int64[ROW_WORDS], bool[max_requests], whether a slot is of its namespace."""
    words = state_words(address, PLACES)
    return (
        vector_at(words, CORPORA, np.uint32), matrix_at(words, CORPUS_ROWS, np.int64),
        matrix_at(words, HITS, np.uint8), vector_at(words, SPACES, np.int32),
        vector_at(words, FROZEN, np.uint32), vector_at(words, FROZEN_ROW, np.int64),
        vector_at(words, READS_FROZEN, np.bool_),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def outputs_of(address, rows, width):
    """Of a DraftBatch: tokens int32[rows, width], probs float32[rows, width], heads int32[3, rows]."""
    words = state_words(address, PLACES)
    return (
        part_at(words, TOKENS, 0, np.int32, rows, width),
        part_at(words, PROBS, 0, np.float32, rows, width),
        part_at(words, HEADS, 0, np.int32, 3, rows),
    )


@njit(cache=True, nogil=True)
def have_room(address, rows, width):
    """Whether outputs and scratch are large enough for a DraftBatch of this shape."""
    words = state_words(address, PLACES)
    is_wide_enough = scratch_words(width) <= columns_at(words, SCRATCH)
    return is_wide_enough and rows * width <= size_at(words, TOKENS) and 3 * rows <= size_at(words, HEADS)


@njit(cache=True, nogil=True)
def scratch_words(width):
    """int64 words that a thread needs for drafts of this width: those of ``scratch_of``."""
    return (4 + width) * CANDIDATES + 3 * width + AHEAD * (MAX_RUNG + 1)


@njit(cache=True, nogil=True)
def scratch_of(address, thread, width):
    """A thread's own: numbers int64[4 + width, CANDIDATES], a draft int32[width], its probabilities
    float32[width] and entries int32[width], and for rows whose memory is fetched together hashes
    uint64[AHEAD, MAX_RUNG] and their numbers int64[AHEAD]."""
    words = state_words(address, PLACES)
    at = 8 * thread * columns_at(words, SCRATCH)
    numbers = part_at(words, SCRATCH, at, np.int64, 4 + width, CANDIDATES)
    at += 8 * (4 + width) * CANDIDATES
    draft = part_at(words, SCRATCH, at, np.int32, 1, width)[0]
    at += 8 * width
    path = part_at(words, SCRATCH, at, np.float32, 1, width)[0]
    at += 8 * width
    entries = part_at(words, SCRATCH, at, np.int32, 1, width)[0]
    at += 8 * width
    hashes = part_at(words, SCRATCH, at, np.uint64, AHEAD, MAX_RUNG)
    at += 8 * AHEAD * MAX_RUNG
    usable = part_at(words, SCRATCH, at, np.int64, 1, AHEAD)[0]
    return numbers, draft, path, hashes, usable, entries
