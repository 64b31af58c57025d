"""What a verification reads of a batch, on the device: one copy, whatever the number of requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from specctl_sglang.proposers.layout import Drafts, Emitted, Places, block_bytes, lay_out

__all__ = ["DevicePlaces", "VerifyBlock"]


@dataclass(frozen=True, slots=True)
class DevicePlaces:
    """``Places``, on the device; views of memory that the next batch overwrites."""

    host: Places
    pinned: torch.Tensor
    block: torch.Tensor
    tokens: torch.Tensor  # int64[n * w]
    positions: torch.Tensor  # int64[n * w]
    next_token: torch.Tensor  # int64[n, w]
    next_sibling: torch.Tensor  # int64[n, w]
    index: torch.Tensor  # int64[n, w] 0, 1, 2, ...
    slots: torch.Tensor  # int64[n * w]
    mask_at: torch.Tensor  # int64[n * w * w], or empty
    mask: torch.Tensor  # bool[n * w * w]


class VerifyBlock:
    """Memory for batches of up to so many requests and places, on the host and on the device.

    A batch is written once the step before it has come back, and each step waits for the one before: so
    neither the copy nor the kernels that read the block are still under way.
    """

    def __init__(self, device: str, requests: int, width: int, *, has_context: bool) -> None:
        """has_context: a mask tells of the context too, as on a GPU; else of drafts among each other."""
        size = block_bytes(requests, width, has_context=has_context)
        self._has_context = has_context
        self._pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=torch.device(device).type == "cuda")
        self._host = self._pinned.numpy()
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._order = torch.arange(requests * width, device=device)
        self._shapes: dict[tuple[int, int], DevicePlaces] = {}
        # What is compiled is compiled now, not with the first request.
        ones = np.ones(1, np.int64)
        self.send(Drafts.none(1, 1), Emitted(ones, np.ones((1, 1), np.int32), ones), torch.ones(1), 1)

    def send(self, drafts: Drafts, emitted: Emitted, rows: torch.Tensor, stride: int) -> DevicePlaces:
        """rows int[n] on the host: the requests' in the table of slots, whose rows are ``stride`` apart."""
        shape = emitted.counts.size, drafts.width
        found = self._shapes.get(shape) or self._new_shape(*shape)
        lay_out(drafts, emitted, rows.numpy().astype(np.int64, copy=False), stride, found.host)
        found.block.copy_(found.pinned, non_blocking=True)
        return found

    def full_mask(self, places: DevicePlaces, lengths_sum: int) -> torch.Tensor:
        """bool[sum of w * (length + w)]: request after request, for each place what it sees of context and
        drafts. Everything is seen but what the drafts' own mask hides."""
        if not self._has_context:
            return places.mask
        requests, width = places.index.shape
        total = width * (lengths_sum + requests * width)
        mask = torch.ones(total, dtype=torch.bool, device=places.mask.device)
        return mask.scatter_(0, places.mask_at, places.mask)

    def _new_shape(self, requests: int, width: int) -> DevicePlaces:
        host = Places.of(self._host, requests, width, has_context=self._has_context)
        one = requests * width
        block = self._device[: host.block.size]
        ints = block[: host.ints.nbytes].view(torch.int64)
        tokens, positions, first, sibling, slots, at = ints.split([one] * 5 + [ints.numel() - 5 * one])
        made = DevicePlaces(
            host, self._pinned[: host.block.size], block, tokens, positions,
            first.view(requests, width), sibling.view(requests, width),
            self._order[:one].view(requests, width), slots, at, block[host.ints.nbytes :].view(torch.bool),
        )  # fmt: skip
        self._shapes[requests, width] = made
        return made
