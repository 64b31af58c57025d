"""One shape of drafts for ranks that run every step together: data-parallel attention.

Such ranks share the layers of a mixture of experts, and a draft head's too: a rank that made fewer passes, or
verified fewer tokens a request, would leave the others waiting. So the rank with the largest decode batch
decides, by its table, what all draft in the step at hand. What each rank wants travels in the rows by which
SGLang's schedulers tell each other, before every step, what they are about to run; there is no further
collective.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specctl.engine.guard import GUARD
from specctl_sglang.terms import OFF, Shape

__all__ = [
    "AGREEMENT",
    "ROWS",
    "Wish",
    "wrap_all_gather",
    "wrap_fallback_tensor",
    "wrap_local_tensor",
    "wrap_prepare_mlp_sync_batch_raw",
]

ROWS = 6


@dataclass(frozen=True, slots=True)
class Wish:
    """Of a rank with a decode batch, for its next step."""

    shape: Shape
    decode_batch: int
    is_sample: bool = False
    most: int | None = None
    """Drafts of a request that this rank can verify; None: all that are prepared."""

    def row(self) -> list[int]:
        """ROWS numbers."""
        most = 0 if self.most is None else self.most + 1
        return [*self.shape, self.decode_batch, int(self.is_sample), most]


_FAILED = Wish(OFF, 0, most=0)


class _Agreement:
    """Of the scheduler in this process."""

    ask: Callable[[Any], Wish] | None = None
    """For a decode batch that is about to run; None: nothing steers this scheduler."""
    agreed: Wish | None = None
    """Of the batch that is about to run; None: no rank decodes, or none knows what was agreed."""

    def __init__(self) -> None:
        self._mine: Wish | None = None

    def begin(self, batch: Any) -> None:
        """Ranks are about to tell each other what they run. batch: of this one; None: nothing."""
        self._mine = self.agreed = None
        if self.ask is not None and batch is not None and batch.forward_mode.is_decode():
            self._mine = GUARD.call("draft", _FAILED, self.ask, batch)

    def row(self) -> list[int]:
        """This rank's part; zeros: it does not decode."""
        return [0] * ROWS if self._mine is None else self._mine.row()

    def close(self, rows: Sequence[Sequence[int]]) -> None:
        """``rows``: by rank, the same ones on every rank."""
        wishes = [
            Wish((steps, topk, width), decode_batch, bool(is_sample), most - 1 if most else None)
            for steps, topk, width, decode_batch, is_sample, most in rows
            if width
        ]
        # The first of those with the largest batch.
        first = max(wishes, key=lambda wish: wish.decode_batch, default=None)
        if first is None:
            return
        most = min((wish.most for wish in wishes if wish.most is not None), default=None)
        self.agreed = Wish(first.shape, first.decode_batch, first.is_sample, most)


AGREEMENT = _Agreement()


def wrap_prepare_mlp_sync_batch_raw(original: Any) -> Any:
    """What a scheduler does before each step, and where it learns that another rank has one."""

    @functools.wraps(original)
    def prepare_mlp_sync_batch_raw(local_batch: Any, *args: Any, **kwargs: Any) -> Any:
        AGREEMENT.begin(local_batch)
        return original(local_batch, *args, **kwargs)

    return prepare_mlp_sync_batch_raw


def wrap_local_tensor(original: Any) -> Any:
    """Ours behind SGLang's numbers."""

    @functools.wraps(original)
    def local_tensor(info: Any, *args: Any, **kwargs: Any) -> Any:
        return _with_row(original(info, *args, **kwargs), AGREEMENT.row())

    return local_tensor


def wrap_fallback_tensor(original: Any) -> Any:
    """That of a rank which is not there says nothing."""

    @functools.wraps(original)
    def fallback_tensor(info: Any, *args: Any, **kwargs: Any) -> Any:
        return _with_row(original(info, *args, **kwargs), [0] * ROWS)

    return fallback_tensor


def _with_row(tensor: Any, row: list[int]) -> Any:
    import torch

    return torch.cat([tensor, tensor.new_tensor(row)])


def wrap_all_gather(original: Any) -> Any:
    @functools.wraps(original)
    def all_gather(info: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(info, *args, **kwargs)
        GUARD.call("draft", None, AGREEMENT.close, info.tp0_info_cpu[:, -ROWS:].tolist())
        return answer

    return all_gather
