"""What steps hand on to the next by the host: lengths of requests, and the tokens that a step emitted.

Under the overlap scheduler a verification's outcome is on the device when the next step is launched. Stock
NGRAM asks for the lengths before it begins with that step, and for the tokens in the middle of it, by copies
made then. The scheduler has the tokens copied for itself as soon as they are there. So those are waited for
here, once, as late as possible: the lengths follow from them. A plain step adds one token to each request,
whatever comes out, so a server that drafts nothing need not wait at all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.managers.overlap_utils import FutureMap

from specctl.engine.guard import GUARD
from specctl_sglang.proposers.layout import Emitted

__all__ = ["HostRelay", "HostRelayMap"]

Longs = npt.NDArray[np.int64]
_UNKNOWN = -1
_NEVER = 0


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step whose tokens are on their way."""

    number: int
    rows: Longs
    before: Longs | None
    """Lengths before a verification; None: the lengths after the step were known at once."""
    width: int
    result: tuple[Any, torch.Tensor, torch.Tensor]
    """The event of the copies; tokens int[n * width] and counts int[n] on the host, once it has come."""


class HostRelay:
    """By the request's row of the pool; a row's next request begins with a prompt, which writes it anew."""

    def __init__(self, rows: int) -> None:
        self._lengths = np.full(rows, _UNKNOWN, np.int64)
        self._tokens = np.zeros((rows, 1), np.int32)
        self._counts = np.zeros(rows, np.int64)
        self._number_of = np.full(rows, _NEVER, np.int64)
        """The last launch of each row's request."""
        self._number = _NEVER
        self._coming: deque[_Launched] = deque()
        self.unfilled: torch.Tensor | None = None
        """Lengths of the batch that is being launched: int64[n] on the host, which ``read`` fills."""

    def note(
        self,
        rows: torch.Tensor,
        lengths: torch.Tensor,
        result: tuple[Any, torch.Tensor, torch.Tensor],
        width: int,
        *,
        is_verification: bool,
    ) -> None:
        """A step was launched for rows int[n]: its tokens come with ``result`` (_Launched), ``width`` for
        each request. lengths int64[n]: before a verification; after any other step."""
        at, held = rows.numpy().astype(np.int64), lengths.numpy()
        self._number += 1
        self._number_of[at] = self._number
        self._settle(only_ready=True)
        self._lengths[at] = _UNKNOWN if is_verification else held
        before = held if is_verification else None
        self._coming.append(_Launched(self._number, at, before, width, result))

    def forget(self, rows: torch.Tensor) -> None:
        """The device alone knows of these."""
        at = rows.numpy()
        self._lengths[at], self._number_of[at] = _UNKNOWN, _NEVER

    def knows(self, rows: torch.Tensor) -> bool:
        """Whether ``read`` tells of all of them."""
        return bool((self._number_of[rows.numpy()] != _NEVER).all())

    def lengths(self, rows: torch.Tensor) -> torch.Tensor | None:
        """int64[n], without waiting; None where one of them is not known yet."""
        found = self._lengths[rows.numpy()]
        return None if (found < 0).any() else torch.from_numpy(found)

    def read(self, rows: torch.Tensor) -> Emitted:
        """After the last step of each of these requests, for which it waits."""
        at = rows.numpy()
        found = self._of_one_step(at)
        if found is None:
            self._settle(only_ready=False)
            found = Emitted(self._lengths[at], self._tokens[at], self._counts[at])
        if self.unfilled is not None:
            self.unfilled.numpy()[:] = found.lengths
            self.unfilled = None
        return found

    def _of_one_step(self, rows: npt.NDArray[Any]) -> Emitted | None:
        """Where the last step was of these requests and no others, as most are: what it tells is not kept,
        as the next one will tell anew."""
        if len(self._coming) != 1 or not np.array_equal(self._coming[0].rows, rows):
            return None
        step = self._coming[0]
        copied, tokens, counts = step.result
        copied.synchronize()
        emitted = counts.numpy().astype(np.int64)
        lengths = self._lengths[rows] if step.before is None else step.before + emitted
        return Emitted(lengths, tokens.numpy().astype(np.int32, copy=False).reshape(-1, step.width), emitted)

    def _settle(self, *, only_ready: bool) -> None:
        while self._coming:
            step = self._coming[0]
            copied, tokens, counts = step.result
            if only_ready and not copied.query():
                return
            copied.synchronize()
            self._coming.popleft()
            self._write(step, tokens.numpy().reshape(-1, step.width), counts.numpy())

    def _write(self, step: _Launched, tokens: npt.NDArray[Any], counts: npt.NDArray[Any]) -> None:
        if step.width > self._tokens.shape[1]:
            self._tokens = np.pad(self._tokens, ((0, 0), (0, step.width - self._tokens.shape[1])))
        # Of rows that were launched once more since, that launch will tell.
        is_last = self._number_of[step.rows] == step.number
        rows, before = step.rows, step.before
        if not is_last.any():
            return
        if not is_last.all():
            rows, tokens, counts = rows[is_last], tokens[is_last], counts[is_last]
            before = None if before is None else before[is_last]
        self._tokens[rows, : step.width] = tokens
        self._counts[rows] = counts
        if before is not None:
            self._lengths[rows] = before + counts


class HostRelayMap(FutureMap):
    """SGLang's relay between steps, which asks the device only for what does not come to the host."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.specctl_relay = HostRelay(self.req_pool_size)

    def resolve_seq_lens_cpu(self, batch: Any, *given: Any, **named: Any) -> None:
        if not GUARD.call("FutureMap.resolve_seq_lens_cpu", False, self._resolved, batch):
            super().resolve_seq_lens_cpu(batch, *given, **named)

    def _resolved(self, batch: Any) -> bool:
        """Whether what came to the host was enough."""
        relay, rows = self.specctl_relay, batch.req_pool_indices_cpu
        relay.unfilled = None
        indices = None if batch.spec_info is None else batch.spec_info.future_indices
        if indices is None or rows is None or self.publish_ready is None or not relay.knows(rows):
            return False
        lengths = relay.lengths(rows)
        self.publish_ready.wait()
        self._publish_fresh = False
        batch.seq_lens = self.new_seq_lens_buf[indices]
        if lengths is None:
            batch.seq_lens_cpu = relay.unfilled = torch.empty(len(rows), dtype=torch.int64)
            batch.seq_lens_sum = None
        else:
            batch.seq_lens_cpu, batch.seq_lens_sum = lengths, int(lengths.sum())
        return True
