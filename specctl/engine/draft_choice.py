"""Which of two sources drafts for a request, the suffix index or a draft head, by what is expected of each.

Of a suffix draft every token has its chance. A head's chances are those of its last drafts by position, over
all requests. The kernel ``specctl_kernels.draft_choice`` has the same rule on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Choice", "DraftChoice", "is_step"]

_DECAY = 1.0 - 1.0 / 256
_SMOOTHING = 1 / 8
_STEP_MAX_S = 0.5
"""A longer time between two steps is idleness."""
_TRIED_EVERY = 64
"""Steps of a head that rests until it is tried again: what is thought of it may have changed unseen."""


@dataclass(frozen=True, slots=True)
class Choice:
    head_runs: bool
    takes_suffix: npt.NDArray[np.bool_]
    """[n]."""
    takes_head: npt.NDArray[np.bool_]
    """[n]; where neither is true, there is no draft."""
    worth: float
    """Share of the step's time that the head's drafts would save, beyond what they take, for requests that it
    has all read; 0.0 where they save none."""


class DraftChoice:
    """Pure. ``width``: most drafted tokens of a request. Requests are known by the engine's ids."""

    def __init__(self, width: int, *, may_rest: bool = True) -> None:
        """may_rest: whether the head rests where it does not pay."""
        self._may_rest = may_rest
        # One draft that was accepted as a whole: a head begins with the best of chances, and is tried.
        self._reached = np.ones(width)
        self._accepted = np.ones(width)
        self._of_head: set[str] = set()
        """Requests whose waiting draft the head made."""
        self._rested_steps = 0
        self._head_s: float | None = None
        self._rest_s: float | None = None
        """Of a step without the head's passes."""

    def verified(self, request_ids: Sequence[str], drafted: Iterable[int], emitted: Iterable[int]) -> None:
        """What came of the drafts that the last step verified; emitted 0: the step sampled nothing there."""
        reached, accepted = np.zeros_like(self._reached), np.zeros_like(self._accepted)
        for request_id, drafts, tokens in zip(request_ids, drafted, emitted, strict=True):
            if tokens and request_id in self._of_head:
                reached[: min(tokens, drafts)] += 1
                accepted[: min(tokens - 1, drafts)] += 1
        seen = reached > 0
        self._reached[seen] = self._reached[seen] * _DECAY + reached[seen]
        self._accepted[seen] = self._accepted[seen] * _DECAY + accepted[seen]

    def expected_of_head(self, wanted: int) -> float:
        """Accepted tokens of a draft of ``wanted``."""
        return float(np.cumprod(self._accepted[:wanted] / self._reached[:wanted]).sum())

    def choose(
        self, of_suffix: npt.NDArray[np.float64], wanted: int, is_read: npt.NDArray[np.bool_] | None = None
    ) -> Choice:
        """of_suffix float64[n]: expected accepted tokens of each request's suffix draft; 0: it has none.
        is_read [n]: requests that the head has read, and may draft for; None: all.

        The head runs while the tokens that it adds are a larger share than its seconds.
        """
        if is_read is None:
            is_read = np.ones(len(of_suffix), np.bool_)
        of_head = self.expected_of_head(wanted)
        gains = np.maximum(of_head - of_suffix, 0.0)
        tokens, cost_share = float((1.0 + of_suffix).sum()), self._cost_share()
        self._rested_steps += 1
        is_tried = self._rested_steps >= _TRIED_EVERY and bool(is_read.any())
        pays = float(gains[is_read].sum()) > cost_share * tokens
        runs = wanted > 0 and (is_tried or pays or not self._may_rest)
        takes_head = is_read & ((of_suffix <= 0) | (of_suffix < of_head)) & runs
        if runs and is_tried and not takes_head.any():
            # One request tells how the head fares.
            takes_head[np.argmax(is_read)] = True
        if takes_head.any():
            self._rested_steps = 0
        worth = max(0.0, float(gains.sum()) / tokens - cost_share) if tokens else 0.0
        return Choice(runs, (of_suffix > 0) & ~takes_head, takes_head, worth)

    def took(self, request_ids: Iterable[str], choice: Choice) -> None:
        """Whose drafts these requests wait with."""
        taken = zip(request_ids, choice.takes_head.tolist(), strict=True)
        self._of_head = {one for one, is_of_head in taken if is_of_head}

    def timed(self, step_s: float, head_s: float | None) -> None:
        """Of one step, and of the head's passes in it beyond those that it runs at rest; None: it rested."""
        if not is_step(step_s):
            return
        if head_s is not None:
            self._head_s = _smoothed(self._head_s, head_s)
        alone_s = step_s - (head_s or 0.0)
        if alone_s > 0:
            self._rest_s = _smoothed(self._rest_s, alone_s)

    def _cost_share(self) -> float:
        return self._head_s / self._rest_s if self._head_s is not None and self._rest_s is not None else 0.0


def is_step(seconds: float) -> bool:
    """Whether so long a time between two steps is that of a step."""
    return 0.0 < seconds <= _STEP_MAX_S


def _smoothed(before: float | None, value: float) -> float:
    return value if before is None else before + _SMOOTHING * (value - before)
