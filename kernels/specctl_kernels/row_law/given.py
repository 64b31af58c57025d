"""What calls of a sampled verification are given: how requests sample, and checks of shapes and dtypes."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["Sampling", "check_drafts", "check_logits", "check_target", "expect"]

_INTEGERS = (torch.int32, torch.int64)
_LOGITS = (torch.bfloat16, torch.float16, torch.float32)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def expect(
    name: str, given: torch.Tensor | None, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> None:
    """ValueError with expected and got; None passes."""
    if given is None:
        return
    if given.shape != shape or given.dtype not in dtypes or not given.is_contiguous():
        raise ValueError(
            f"{name}: expected {' or '.join(map(_name, dtypes))}{list(shape)}, contiguous, got "
            f"{_name(given.dtype)}{list(given.shape)}, strides {given.stride()}"
        )


class Sampling(NamedTuple):
    """Of R requests, in their order, or of as many slots as there are, where a call has the requests' slots.

    Top-k, top-p and min-p: None for off in the whole batch, which also compiles a smaller kernel. Ties are
    kept, but for top-k 1: min-p keeps what is at least min_p times the largest probability; top-k what is at
    least the k-th largest; top-p the largest down to the first at which they, with all its equals, reach
    top_p. They cut in this order.
    """

    temperature: torch.Tensor
    """float32[R]; at 0 a request is greedy, whatever its other options; at infinity all finite logits are
    equally probable."""
    top_k: torch.Tensor | None
    """int32[R], under 1 or from V for off, 1 as temperature 0: the first of equals."""
    top_p: torch.Tensor | None
    """float32[R], 1 for off."""
    min_p: torch.Tensor | None
    """float32[R], 0 for off."""
    seeds: torch.Tensor
    """int64[R]: a row's random numbers depend on its request's seed and its position alone
    (``draws.uniforms_at``), and a request's tokens on nothing else of the batch."""

    @property
    def has_cuts(self) -> bool:
        return not (self.top_k is None and self.top_p is None and self.min_p is None)

    def check(self, count: int) -> None:
        """ValueError with expected and got."""
        expect("temperature", self.temperature, (count,), (torch.float32,))
        expect("top_k", self.top_k, (count,), (torch.int32,))
        expect("top_p", self.top_p, (count,), (torch.float32,))
        expect("min_p", self.min_p, (count,), (torch.float32,))
        expect("seeds", self.seeds, (count,), (torch.int64,))

    def of(self, req: int) -> tuple[float, int, float, float]:
        """(temperature, top_k, top_p, min_p) of one, for the references."""
        return (
            float(self.temperature[req]),
            0 if self.top_k is None else int(self.top_k[req]),
            1.0 if self.top_p is None else float(self.top_p[req]),
            0.0 if self.min_p is None else float(self.min_p[req]),
        )

    def at(self, slots: torch.Tensor | None) -> Sampling:
        """Of the requests at these slots, for the references."""
        return self if slots is None else Sampling(*(v if v is None else v[slots.long()] for v in self))


def check_logits(logits: torch.Tensor) -> None:
    """ValueError with expected and got."""
    is_matrix = logits.ndim == 2 and logits.shape[1] > 0 and logits.dtype in _LOGITS
    if not is_matrix or (logits.shape[1] > 1 and logits.stride(1) != 1):
        raise ValueError(
            f"logits: expected bfloat16, float16 or float32 [rows, columns] with contiguous rows and a "
            f"column at least, got {_name(logits.dtype)}{list(logits.shape)}, strides {logits.stride()}"
        )


def check_target(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    starts: torch.Tensor,
    sampling: Sampling,
    positions: torch.Tensor,
    width: int,
    slots: torch.Tensor | None,
    not_finite: torch.Tensor,
) -> None:
    """ValueError with expected and got."""
    check_logits(logits)
    if starts.ndim != 1 or starts.shape[0] == 0:
        raise ValueError(f"starts: expected [requests + 1], got {list(starts.shape)}")
    if width < 1:
        raise ValueError(f"width: expected 1 at least, got {width}")
    rows, requests = logits.shape[0], starts.shape[0] - 1
    expect("starts", starts, (requests + 1,), (torch.int32,))
    expect("drafts", drafts, (rows,), _INTEGERS)
    expect("positions", positions, (rows,), (torch.int64,))
    expect("slots", slots, (requests,), _INTEGERS)
    expect("not_finite", not_finite, (1,), (torch.int64,))
    sampling.check(requests if slots is None else sampling.temperature.shape[0])


def check_drafts(
    logits: torch.Tensor,
    starts: torch.Tensor,
    width: int,
    draft_logits: torch.Tensor | None,
    draft_slots: torch.Tensor | None,
    uniforms: torch.Tensor | None,
) -> None:
    """ValueError with expected and got."""
    expect("uniforms", uniforms, (logits.shape[0], 2), (torch.float64,))
    if (draft_logits is None) != (draft_slots is None):
        alone = "draft_slots" if draft_logits is None else "draft_logits"
        raise ValueError(f"draft_logits and draft_slots: expected both or neither, got {alone} alone")
    if draft_logits is None:
        return
    expect("draft_slots", draft_slots, (starts.shape[0] - 1,), _INTEGERS)
    shape = list(draft_logits.shape)
    is_right = len(shape) == 3 and shape[1] >= width - 1 and 0 < shape[2] <= logits.shape[1]
    if not is_right or (shape[2] > 1 and draft_logits.stride(2) != 1) or draft_logits.dtype not in _LOGITS:
        raise ValueError(
            f"draft_logits: expected bfloat16, float16 or float32 [slots, {width - 1} or more, "
            f"{logits.shape[1]} or fewer] with contiguous columns, got {_name(draft_logits.dtype)}{shape}, "
            f"strides {draft_logits.stride()}"
        )
