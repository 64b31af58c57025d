"""When a draft head that skipped some steps has to catch up on them. Pure."""

from __future__ import annotations

from enum import Enum

import numpy as np

__all__ = ["Backlog", "Turn"]


class Turn(Enum):
    KEEP = "the step is kept for later; the head does not run"
    RUN = "the head runs on the step"


class Backlog:
    """Of a head whose steps without drafts are kept: the last ``ring`` positions of each request."""

    def __init__(self, ring: int, rows_max: int, requests_max: int, drafts_max: int) -> None:
        """rows_max: of one pass of the head; drafts_max: a step's longer queries are prompts."""
        self._ring = ring
        self._rows_max = rows_max
        self._limit = self.reach(requests_max)
        self._longest_decode = drafts_max + 1
        self.positions = 0
        """How far behind the head may be on any request."""

    def reach(self, requests: int) -> int:
        """Positions before a step's own rows that one pass over ``requests`` requests can make up for."""
        return max(0, min(self._ring, self._rows_max // requests - 1))

    def next(self, queries: np.ndarray, drafts: int) -> tuple[Turn, bool]:
        """What becomes of a step of ``queries`` rows (int[n]) with ``drafts`` wanted after it, and whether
        the head catches up before. A step with a prompt goes to the head: its rows are too many to keep."""
        if drafts > 0:
            return Turn.RUN, self._settled()
        is_decode = queries <= self._longest_decode
        longest = int(queries[is_decode].max(initial=0))
        catches_up = self.positions + longest > self._limit and self._settled()
        keeps = bool(is_decode.all()) and longest <= self._limit
        if keeps or self.positions:
            self.positions += longest
        return (Turn.KEEP if keeps else Turn.RUN), catches_up

    def _settled(self) -> bool:
        """Whether there was anything to make up for."""
        before, self.positions = self.positions, 0
        return before > 0
