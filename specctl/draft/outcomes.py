"""Outcomes of drafts, by traffic class, source, match and votes, and the tables that follow from them.

By what a drafted token is and follows they are counted, too, for ``token_odds``.

A table is the built-in regression of ``calibration``, refitted to the outcomes of its class. PRIOR_TOKENS
outcomes that are as likely as the built-in table says, spread over all its entries, hold it where little was
seen. Old outcomes lose weight: beyond MOST_TOKENS of a table all its counts are halved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from specctl.draft.calibration import ENTRIES, chances, refit
from specctl.draft.lessons import CLASSES, ENTRY_WORDS, OUTCOME_WORDS
from specctl.draft.token_odds import PLACES, TokenOdds

__all__ = ["MOST_TOKENS", "Counts", "Outcomes", "added", "checked_counts"]

Counts = Mapping[str, npt.NDArray[np.int64]]
"""By traffic class: int64[n, 4], source (0 own text, 1 corpus), entry of its table, drafted, accepted."""
MOST_TOKENS = 8192
_ODDS_CALLS = 64
"""From one time that outcomes are taken up to the next."""
_FIRST_CALLS, _MOST_CALLS = 64, 512
"""From one refit to the next."""
_LONGEST_NAME = 256


class Outcomes:
    """``counted`` and ``tables`` are what compiled calls add to and read; nothing here runs beside them."""

    def __init__(self, threads: int) -> None:
        self.counted = np.zeros((threads, OUTCOME_WORDS), np.int32)
        self.tables = np.tile(chances(), (CLASSES, 1))
        """float32[2 * CLASSES, ENTRIES]: of each class one for a request's own text and one for a corpus."""
        self.tokens = TokenOdds()
        self._known = np.zeros((2 * CLASSES, ENTRIES, 2))
        self._unsaved = np.zeros_like(self._known)
        self.is_learning = True
        """Else outcomes are only counted."""
        self._classes = {"": 0}
        self._calls, self._calls_to_refit, self._refit_at = 0, _FIRST_CALLS, _FIRST_CALLS
        self._stale = np.zeros(2 * CLASSES, np.bool_)
        """Tables with outcomes since their refit."""

    def class_of(self, name: str) -> int:
        """The row of a traffic class; that of requests of no class where all are taken."""
        if name not in self._classes and len(self._classes) < CLASSES and len(name) <= _LONGEST_NAME:
            self._classes[name] = len(self._classes)
        return self._classes.get(name, 0)

    def chances_of(self, traffic_class: str = "") -> npt.NDArray[np.float32]:
        """float32[2, ENTRIES] as in ``calibration``, a copy: what a device drafts with to equal the host."""
        row = self._classes.get(traffic_class, 0)
        return self.tables[2 * row : 2 * row + 2].copy()

    def is_due(self, calls: int) -> bool:
        """After so many more calls."""
        self._calls += calls
        return self._calls >= _ODDS_CALLS and self.is_learning

    def learn_if_due(self) -> None:
        """Take up what was counted. Tables that it changes are refitted at first often, later as it still
        changes something."""
        if not self.is_due(0):
            return
        self._calls_to_refit -= self._calls
        self._calls = 0
        self._drained_into_known()
        if self._calls_to_refit <= 0:
            self._calls_to_refit = self._refit_at = min(self._refit_at * 5 // 4, _MOST_CALLS)
            self._refit(np.flatnonzero(self._stale).tolist())
            self._stale[:] = False

    def take(self) -> Counts:
        """Counts since the last call, for a corpus file."""
        self._drained_into_known()
        taken, self._unsaved = self._unsaved, np.zeros_like(self._unsaved)
        return {
            name: _packed(taken[2 * row : 2 * row + 2])
            for name, row in self._classes.items()
            if taken[2 * row : 2 * row + 2].any()
        }

    def replace(self, counts: Counts) -> None:
        """A file's counts take the place of what is known. What is not saved yet stays."""
        self._drained_into_known()
        self._known[:] = self._unsaved
        for name, rows in counts.items():
            row = self.class_of(name)
            if row or not name:
                source, entry, drafted, accepted = rows.T
                self._known[2 * row + source, entry] += np.stack([drafted, accepted], axis=1)
        self._refit(range(2 * CLASSES))

    def _drained_into_known(self) -> None:
        counted: npt.NDArray[np.int32] = self.counted.sum(axis=0, dtype=np.int32)
        self.counted[:] = 0
        fresh = counted[:ENTRY_WORDS].reshape(self._known.shape)
        self._known += fresh
        self._unsaved += fresh
        self._stale |= fresh.any(axis=(1, 2))
        if self.is_learning:
            self.tokens.learn(counted[ENTRY_WORDS:].reshape(PLACES, 3))

    def _refit(self, rows: Iterable[int]) -> None:
        for row in rows:
            while self._known[row, :, 0].sum() > MOST_TOKENS:
                self._known[row] *= 0.5
            self.tables[row] = refit(row % 2, self._known[row])


def added(parts: Iterable[Counts]) -> Counts:
    """One of all, with no more than MOST_TOKENS of each table."""
    sums: dict[str, npt.NDArray[np.float64]] = {}
    for counts in parts:
        for name, rows in counts.items():
            if name not in sums and len(sums) == CLASSES:
                continue
            of_class = sums.setdefault(name, np.zeros((2, ENTRIES, 2)))
            source, entry, drafted, accepted = rows.T
            of_class[source, entry] += np.stack([drafted, accepted], axis=1)
    for of_class in sums.values():
        for table in of_class:
            while table[:, 0].sum() > MOST_TOKENS:
                table *= 0.5
    return {name: _packed(of_class) for name, of_class in sums.items()}


def checked_counts(counts: Mapping[str, Iterable[Iterable[int]]]) -> Counts:
    """As arrays. ValueError: a name, a place or a count that cannot be."""
    if len(counts) > CLASSES or any(len(name) > _LONGEST_NAME for name in counts):
        raise ValueError(f"outcomes: expected at most {CLASSES} classes of short names, got {len(counts)}")
    checked = {}
    for name, rows in counts.items():
        found = np.array([list(row) for row in rows], np.int64).reshape(-1, 4)
        source, entry, drafted, accepted = found.T
        is_place = (source >= 0) & (source < 2) & (entry >= 0) & (entry < ENTRIES)
        is_count = (accepted >= 0) & (accepted <= drafted) & (drafted <= MOST_TOKENS)
        if not (is_place & is_count).all() or len({(*row[:2],) for row in found.tolist()}) < len(found):
            raise ValueError("outcomes: expected entries of a table with drafted and accepted tokens")
        checked[name] = found
    return checked


def _packed(tables: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    rounded = np.rint(tables).astype(np.int64)
    source, entry = np.nonzero(rounded[..., 0])
    return np.column_stack([source, entry, rounded[source, entry]])
