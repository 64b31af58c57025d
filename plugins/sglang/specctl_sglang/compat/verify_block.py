"""What a verification reads of a batch, on the device: one copy, whatever the number of requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from specctl_sglang.proposers.layout import Drafts, Emitted, Places, block_bytes, lay_out

__all__ = ["DevicePlaces", "VerifyBlock"]

WHOLE_MOST = 64 * 1024
"""Bytes of a mask over contexts that is written on the host; a larger one is filled on the device, which is
two launches more."""


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
    mask_at: torch.Tensor  # int64[n * w * w]; empty where the mask over contexts comes whole
    mask: torch.Tensor  # bool[n * w * w]


class VerifyBlock:
    """Memory for batches of up to so many requests and places, on the host and on the device.

    A batch is written once the step before it has come back, and each step waits for the one before: so
    neither the copy nor the kernels that read the block are still under way.
    """

    def __init__(self, device: str, requests: int, width: int, *, has_context: bool) -> None:
        """has_context: a mask tells of the context too, as on a GPU; else of drafts among each other."""
        whole = WHOLE_MOST if has_context else 0
        size = block_bytes(requests, width, has_mask_at=has_context) + whole
        self._has_context = has_context
        self._pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=torch.device(device).type == "cuda")
        self._host = self._pinned.numpy()
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._order = torch.arange(requests * width, device=device)
        self._shapes: dict[tuple[int, int, bool], DevicePlaces] = {}
        # What is compiled is compiled now, not with the first request.
        ones = np.ones(1, np.int64)
        self.send(Drafts.none(1, 1), Emitted(ones, np.ones((1, 1), np.int32), ones), torch.ones(1), 1)

    def send(
        self, drafts: Drafts, emitted: Emitted, rows: torch.Tensor, stride: int, lengths_sum: int = 0
    ) -> tuple[DevicePlaces, torch.Tensor]:
        """rows int[n] on the host: the requests' in the table of slots, whose rows are ``stride`` apart.
        lengths_sum: of ``emitted``; 0: no mask is wanted.

        Answers the places and a mask: bool[sum of w * (length + w)], request after request, for each place
        what it sees of context and drafts; without contexts, or where it is not wanted, that of the places.
        """
        requests, width = emitted.counts.size, drafts.width
        size = width * (lengths_sum + requests * width) if lengths_sum and self._has_context else 0
        is_large = size > WHOLE_MOST
        found = self._shapes.get((requests, width, is_large)) or self._new_shape(requests, width, is_large)
        at_rows = rows.numpy().astype(np.int64, copy=False)
        if size == 0 or is_large:
            lay_out(drafts, emitted, at_rows, stride, found.host)
            found.block.copy_(found.pinned, non_blocking=True)
            return found, _filled(found, size) if size else found.mask
        start = found.block.numel()
        end = start + size
        lay_out(drafts, emitted, at_rows, stride, found.host, self._host[start:end].view(np.bool_))
        self._device[:end].copy_(self._pinned[:end], non_blocking=True)
        return found, self._device[start:end].view(torch.bool)

    def _new_shape(self, requests: int, width: int, is_large: bool) -> DevicePlaces:
        host = Places.of(self._host, requests, width, has_mask_at=is_large)
        one = requests * width
        block = self._device[: host.block.size]
        ints = block[: host.ints.nbytes].view(torch.int64)
        tokens, positions, first, sibling, slots, at = ints.split([one] * 5 + [ints.numel() - 5 * one])
        made = DevicePlaces(
            host, self._pinned[: host.block.size], block, tokens, positions,
            first.view(requests, width), sibling.view(requests, width),
            self._order[:one].view(requests, width), slots, at, block[host.ints.nbytes :].view(torch.bool),
        )  # fmt: skip
        self._shapes[requests, width, is_large] = made
        return made


def _filled(places: DevicePlaces, size: int) -> torch.Tensor:
    """Everything is seen but what the drafts' own mask hides."""
    mask = torch.ones(size, dtype=torch.bool, device=places.mask.device)
    return mask.scatter_(0, places.mask_at, places.mask)
