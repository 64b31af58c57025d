"""When two greedy outputs part by rounding alone."""

from __future__ import annotations

__all__ = ["tie_margin"]

_MARGINS = {"float32": 1e-3, "float16": 0.0625, "bfloat16": 0.25}
"""Two steps of the dtype at logits from 16 to 32; float32 sums over a few thousand products."""
_DEFAULT = "bfloat16"


def tie_margin(dtype: str | None) -> float:
    """Largest difference of log probability that rounding makes between two passes of the target.

    A verification computes the same logits in another order than a decode step. ``dtype``: of the target,
    with or without ``torch.``; one that is not known is taken for bfloat16.
    """
    return _MARGINS.get((dtype or _DEFAULT).removeprefix("torch."), _MARGINS[_DEFAULT])
