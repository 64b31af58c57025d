"""Lengths of requests that the host knows without asking the device.

Under the overlap scheduler a verification's outcome is on the device, and stock NGRAM waits for it before it
launches the next step. A plain step adds one token to each request, whatever comes out, so a server that
drafts nothing need not wait: that is what off costs else.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.managers.overlap_utils import FutureMap

__all__ = ["HostLengths", "HostLengthsMap"]

_UNKNOWN = -1


class HostLengths:
    """By the request's row of the pool; a row's next request begins with a prompt, which writes it anew."""

    def __init__(self, rows: int) -> None:
        self._lengths = torch.full((rows,), _UNKNOWN, dtype=torch.int64)

    def note(self, rows: torch.Tensor | None, lengths: torch.Tensor | None) -> None:
        """rows int[n] and lengths int[n] on the host; None: known to the device only."""
        if rows is not None:
            self._lengths[rows.long()] = _UNKNOWN if lengths is None else lengths.to(torch.int64)

    def of(self, rows: torch.Tensor) -> torch.Tensor | None:
        """int64[n]; None where one of them is not known."""
        lengths = self._lengths[rows.long()]
        return None if bool((lengths < 0).any()) else lengths


class HostLengthsMap(FutureMap):
    """SGLang's relay between steps, which asks the device only for what the host does not know."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.specctl_lengths = HostLengths(self.req_pool_size)

    def resolve_seq_lens_cpu(self, batch: Any) -> None:
        indices = None if batch.spec_info is None else batch.spec_info.future_indices
        rows = batch.req_pool_indices_cpu
        known = None if indices is None or rows is None else self.specctl_lengths.of(rows)
        if known is None or self.publish_ready is None or self.fwd_prepare_d2h_stream is None:
            super().resolve_seq_lens_cpu(batch)
            return
        self.publish_ready.wait()
        self._publish_fresh = False
        batch.seq_lens = self.new_seq_lens_buf[indices]
        batch.seq_lens_cpu = known
        batch.seq_lens_sum = int(known.sum())
