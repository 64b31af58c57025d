"""When a hybrid's draft head reads nothing at all. Pure.

A head at rest still reads what the target verifies, so that its KV cache is whole when it drafts again. Where
that takes more of a step than its drafts would bring, it sleeps. A request that it has not read whole has
suffix drafts alone until it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["HeadSleep"]

_SMOOTHING = 1 / 256
_READING_LEAST = 0.04
"""Of a step. The head of a large model, one layer beside many, takes less, and never sleeps."""
_MARGIN = 0.2
_AWAKE_MIN, _ASLEEP_MAX = 512, 4096
"""Steps with drafts. Then new requests try it again: what is thought of it may have changed unseen."""
_OWN_PROMPTS = 16
"""Requests that took nothing from the prefix cache before the head may sleep. What it leaves unread stays so
in the cache, for whoever takes these blocks."""


class HeadSleep:
    """Requests are known by the engine's ids."""

    def __init__(self) -> None:
        self.is_asleep = False
        self._steps = 0
        self._own_prompts = 0
        self._unread: set[str] = set()
        self._worth = 0.0
        self._read_s = self._step_s = 0.0

    def start(self, cached_tokens: int) -> None:
        """A request; cached_tokens: of its prompt, that were taken from the prefix cache."""
        self._own_prompts += 1
        if cached_tokens:
            self._own_prompts = 0
            self._turn(asleep=False)

    def finish(self, request_ids: Iterable[str]) -> None:
        self._unread.difference_update(request_ids)

    def begin(self, request_ids: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Of the step at hand: whether the head has read all of each request, this step's rows with them."""
        reading = self._read_s / self._step_s if self._step_s else 0.0
        if self.is_asleep:
            if self._worth > reading * (1 + _MARGIN) or self._steps >= _ASLEEP_MAX:
                self._turn(asleep=False)
        elif self._steps >= _AWAKE_MIN and self._own_prompts >= _OWN_PROMPTS:
            self._turn(asleep=reading > max(_READING_LEAST, self._worth * (1 + _MARGIN)))
        if self.is_asleep:
            self._unread.update(request_ids)
        return np.array([one not in self._unread for one in request_ids], np.bool_)

    def drafted(self, worth: float) -> None:
        """Of a step after which drafts are wanted. worth: share of its time that the head's drafts would
        save, beyond what they take, had it read every request; 0.0 where it would not run."""
        self._steps += 1
        self._worth += _SMOOTHING * (worth - self._worth)

    def timed(self, step_s: float, read_s: float) -> None:
        """read_s: of passes without drafts. A step asleep tells nothing."""
        if not self.is_asleep:
            self._read_s += _SMOOTHING * (read_s - self._read_s)
            self._step_s += _SMOOTHING * (step_s - self._step_s)

    def _turn(self, *, asleep: bool) -> None:
        if asleep != self.is_asleep:
            self.is_asleep, self._steps = asleep, 0
