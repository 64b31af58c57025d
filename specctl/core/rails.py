"""Constraints before a choice: which settings every bucket may have now, and why not the others. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from specctl.contract.classes import ClassLimit
from specctl.contract.setting import Setting
from specctl.core.messages import Reason
from specctl.core.space import Bools, Ints, Space

__all__ = [
    "NOTHING_HELD",
    "Constraint",
    "Held",
    "Rails",
    "held_constraints",
    "held_off",
]


class Constraint(NamedTuple):
    """``allowed``: [bucket, setting]."""

    allowed: Bools
    reason: Reason
    words: str


class Held(NamedTuple):
    """What is held from outside, by bucket's last decode batch, with the reason in words.

    ``settings``: the only one that a bucket may have; ``ceilings``: none that drafts or verifies more.
    ``class_limits``: in the place of those that are wanted; None: those.
    """

    settings: Mapping[int, tuple[Setting, Reason, str]] = {}
    ceilings: Mapping[int, tuple[Setting, Reason, str]] = {}
    class_limits: tuple[ClassLimit, ...] | None = None


NOTHING_HELD = Held()


class Rails:
    """Remembers when buckets changed. Told only of changes that the engine has accepted."""

    def __init__(self, space: Space) -> None:
        self._changed_s, self._before_s = np.full((2, len(space.buckets)), -np.inf)
        """The last change and the one before it."""
        self._settings = len(space.settings)

    def accepted(self, buckets: list[int], time_s: float) -> None:
        self._before_s[buckets] = self._changed_s[buckets]
        self._changed_s[buckets] = time_s

    def dwell(
        self, dwell_s: float, present: Ints, may_wait: Bools, has_drifted: bool, time_s: float
    ) -> Constraint:
        """A bucket that changed lately keeps what it has; one that is False in ``may_wait`` does not.

        ``has_drifted``: the text has changed again. It may have been another for a moment only, such as the
        first tokens of answers that begin together. Then a bucket may change early, but not twice in a row.
        """
        is_soon = may_wait & (time_s - self._changed_s < dwell_s)
        if has_drifted:
            is_soon &= self._changed_s < self._before_s + dwell_s
        allowed = np.ones((len(present), self._settings), np.bool_)
        allowed[is_soon] = False
        allowed[np.arange(len(present)), present] = True
        return Constraint(allowed, Reason.DWELL, f"changed less than {dwell_s:g} s ago")


def held_off(held: Held, space: Space, reason: Reason, words: str) -> Held:
    """Every bucket off, whatever else is held; unchanged where off is not prepared."""
    if not space.is_off_prepared:
        return held
    off = space.settings[0], reason, words
    return Held(ceilings={last: off for _, last in space.buckets}, class_limits=held.class_limits)


def held_constraints(held: Held, space: Space) -> list[Constraint]:
    """One for each bucket that is held."""
    shape = len(space.buckets), len(space.settings)
    found = []
    for last, (setting, reason, words) in (*held.settings.items(), *held.ceilings.items()):
        bucket = space.bucket_index.get(last)
        if bucket is None:
            continue
        allowed = np.ones(shape, np.bool_)
        if last in held.settings:
            allowed[bucket] = np.arange(shape[1]) == (space.number_of(setting) or 0)
        else:
            within = space.depth <= setting.num_speculative_tokens
            allowed[bucket] = within & (space.width <= setting.width_tokens)
        found.append(Constraint(allowed, reason, words))
    return found
