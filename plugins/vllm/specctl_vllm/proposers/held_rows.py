"""What a draft head at rest has not read yet: the last rows of each request, until it catches up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["CatchUp", "HeldRows", "Rows"]

Numbers = npt.NDArray[np.intp]


class Rows(NamedTuple):
    """T rows of the target, as its head takes them."""

    ids: torch.Tensor
    """integer[T]."""
    positions: torch.Tensor
    """integer[T]."""
    slots: torch.Tensor
    """integer[T], places of the KV cache."""
    states: torch.Tensor
    """[T, F]."""

    def at(self, index: Numbers) -> Rows:
        """A copy of these rows."""
        on_device = torch.from_numpy(index).to(self.ids.device)
        return Rows(*(part[on_device] for part in self))


class CatchUp(NamedTuple):
    """Of n requests of a batch."""

    rows: Rows
    """Request by request, each one's in the order of its positions."""
    requests: Numbers
    """[n], places in the batch."""
    counts: Numbers
    """[n], rows of each."""


class HeldRows:
    """Requests are known by the engine's ids. A request's rows follow each other without a gap: whoever
    leaves rows of a request out drops it first."""

    def __init__(self, most: int, rows_max: int) -> None:
        """most: rows of one request; rows_max: of all together."""
        self._most = most
        self._rows_max = rows_max
        self._parts: list[Rows] = []
        self._stored = 0
        """Rows in the parts, with those of requests that were dropped."""
        self._places: dict[str, list[Numbers]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._places

    def fits(self, request_ids: Iterable[str], counts: Numbers) -> bool:
        held = [sum(map(len, self._places.get(one, ()))) for one in request_ids]
        within = bool((np.array(held, np.intp) + counts <= self._most).all())
        return within and self._stored + int(counts.sum()) <= self._rows_max

    def keep(self, request_ids: Sequence[str], starts: Numbers, counts: Numbers, step: Rows) -> None:
        """starts int[n], counts int[n] >= 1: where each request's rows are in those of the step."""
        for request_id, count in zip(request_ids, counts.tolist(), strict=True):
            self._places.setdefault(request_id, []).append(np.arange(self._stored, self._stored + count))
            self._stored += count
        self._parts.append(step.at(_spans(starts, counts)))

    def take(self, batch: Sequence[str]) -> CatchUp | None:
        """What the requests of a batch have, which is held no longer; None: nothing."""
        found = [(at, self._places.pop(one)) for at, one in enumerate(batch) if one in self._places]
        if not found:
            return None
        stored = Rows(*(torch.cat(parts) for parts in zip(*self._parts, strict=True)))
        places = [np.concatenate(parts) for _, parts in found]
        taken = stored.at(np.concatenate(places))
        self._keep_only(stored)
        counts = np.array([len(part) for part in places], np.intp)
        return CatchUp(taken, np.array([at for at, _ in found], np.intp), counts)

    def drop(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._places.pop(request_id, None)
        if not self._places:
            self.clear()

    def clear(self) -> None:
        self._parts, self._stored, self._places = [], 0, {}

    def _keep_only(self, stored: Rows) -> None:
        """The rows of requests that are not in the batch."""
        rest = {one: np.concatenate(parts) for one, parts in self._places.items()}
        self.clear()
        for request_id, places in rest.items():
            count = np.array([len(places)], np.intp)
            self.keep([request_id], np.zeros(1, np.intp), count, stored.at(places))


def _spans(starts: Numbers, counts: Numbers) -> Numbers:
    """start, start + 1, ... of each."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
