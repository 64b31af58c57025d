"""Counters of acceptance that live on the device and are read without waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton

from specctl_kernels.acceptance_stats.kernel import add_kernel

__all__ = ["AcceptanceCounts", "AcceptanceStats"]

_INTEGERS = (torch.int32, torch.int64)
_REQUESTS = 64


@dataclass(frozen=True)
class AcceptanceCounts:
    """Sums since the start, int64, of C classes and P positions."""

    steps: torch.Tensor
    """[C], requests that a step verified, without drafts as well."""
    not_finite: torch.Tensor
    """[C], requests that verification marked ``NOT_FINITE``; counted nowhere else."""
    reached: torch.Tensor
    """[C, P], requests whose drafts before the position were kept, and that had one there."""
    accepted: torch.Tensor
    """[C, P], those of them whose draft there was kept too."""


def _views(buffer: torch.Tensor, classes: int, positions: int) -> AcceptanceCounts:
    sizes = (classes, classes, classes * positions, classes * positions)
    steps, not_finite, reached, accepted = buffer.split(sizes)
    shape = (classes, positions)
    return AcceptanceCounts(steps, not_finite, reached.view(shape), accepted.view(shape))


class AcceptanceStats:
    """Acceptance by class and position. All calls come from one thread, on one stream."""

    def __init__(self, classes: int, positions: int, device: torch.device | str) -> None:
        """``positions``: the most drafts of a request whose positions are told apart; those behind are not
        counted. ValueError: fewer than one class, or fewer than 0 positions."""
        if classes < 1 or positions < 0:
            raise ValueError(f"classes, positions: expected 1 and 0 at least, got {classes} and {positions}")
        self._shape = (classes, positions)
        size = 2 * classes * (1 + positions)
        self._sums = torch.zeros(size, dtype=torch.int64, device=device)
        is_cuda = self._sums.is_cuda
        # One is being filled while the other is what was last read.
        self._copies = [torch.zeros(size, dtype=torch.int64, pin_memory=is_cuda) for _ in range(2)]
        self._is_done: Callable[[], bool] | None = None
        self._finished: int | None = None

    def add(
        self,
        counts: torch.Tensor,
        starts: torch.Tensor,
        *,
        drafts: torch.Tensor | None = None,
        classes: torch.Tensor | None = None,
    ) -> None:
        """Count one step of R requests, in one launch; nothing is read back.

        counts   int32[R], emitted tokens, as ``verify_rejection``, ``verify_block`` and ``verify_greedy``
                 return them: 0 for a request without rows, which is not counted, negative for ``NOT_FINITE``
        starts   int32[R + 1], the first row of each request, ending with N; a request has one row more than
                 drafts
        drafts   integer[N], the token that each row was fed; a negative one is no draft, and those behind it
                 were not reached; None if all are drafts
        classes  int32[R], others than 0 to C - 1 are not counted; None for 0
        ValueError: another shape, dtype or device.
        """
        requests = counts.shape[0] if counts.ndim == 1 else -1
        self._expect("counts", counts, (requests,), (torch.int32,))
        self._expect("starts", starts, (requests + 1,), (torch.int32,))
        self._expect("classes", classes, (requests,), (torch.int32,))
        if drafts is not None:
            self._expect("drafts", drafts, (drafts.numel(),), _INTEGERS)
        if requests == 0:
            return
        kinds, positions = self._shape
        sums = _views(self._sums, kinds, positions)
        add_kernel[(kinds if classes is not None else 1,)](
            counts, starts, drafts, classes, requests, sums.steps, sums.not_finite, sums.reached,
            sums.accepted, positions, REQUESTS=_REQUESTS,
            POSITIONS=max(2, triton.next_power_of_2(positions)), num_warps=4,
        )  # fmt: skip

    def snapshot(self) -> AcceptanceCounts | None:
        """What the last finished copy holds, on the host; None before the first. Never waits.

        Starts the next copy if none is under way, so a caller that looks now and then sees the state at the
        look before; on a CPU, of this look. The tensors are the caller's own.
        """
        self._take_finished()
        if self._is_done is None:
            goal = self._copies[0 if self._finished != 0 else 1]
            self._is_done = _start_copy(self._sums, goal)
            self._take_finished()
        if self._finished is None:
            return None
        return _views(self._copies[self._finished].clone(), *self._shape)

    def _take_finished(self) -> None:
        if self._is_done is not None and self._is_done():
            self._finished = 0 if self._finished != 0 else 1
            self._is_done = None

    def _expect(
        self, name: str, given: torch.Tensor | None, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
    ) -> None:
        if given is None:
            return
        is_right = tuple(given.shape) == shape and given.dtype in dtypes and given.is_contiguous()
        if not is_right or given.device != self._sums.device:
            kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise ValueError(
                f"{name}: expected {kinds}{[one if one >= 0 else 'requests' for one in shape]}, contiguous, "
                f"on {self._sums.device}, got {str(given.dtype).removeprefix('torch.')}{list(given.shape)}, "
                f"strides {given.stride()}, on {given.device}"
            )


def _start_copy(source: torch.Tensor, goal: torch.Tensor) -> Callable[[], bool]:
    """Begin to copy to the host; what tells whether it is over."""
    goal.copy_(source, non_blocking=source.is_cuda)
    if not source.is_cuda:
        return lambda: True
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(source.device))
    return lambda: bool(event.query())
