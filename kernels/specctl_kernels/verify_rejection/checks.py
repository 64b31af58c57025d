"""Shapes and dtypes that verification by rejection sampling takes."""

from __future__ import annotations

import torch

__all__ = ["check_drafts", "check_logits", "check_target", "expect"]

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
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    width: int,
    slots: torch.Tensor | None,
    not_finite: torch.Tensor | None,
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
    given = (requests if slots is None else temperature.shape[0],)
    expect("temperature", temperature, given, (torch.float32,))
    expect("top_k", top_k, given, (torch.int32,))
    expect("top_p", top_p, given, (torch.float32,))
    expect("min_p", min_p, given, (torch.float32,))
    expect("seeds", seeds, given, (torch.int64,))


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
