"""What top-k, top-p and min-p keep of a row: all that is taken for it from ``verify_rejection``."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.verify_rejection.kernel import _options as options_of
from specctl_kernels.verify_rejection.kernel import _surely_kept as surely_kept
from specctl_kernels.verify_rejection.threshold import kept_set

__all__ = ["has_cuts", "kept_of", "options_of", "surely_kept"]


@triton.jit
def has_cuts(top_k, top_p, min_p, columns):
    return ((top_k > 0) & (top_k < columns)) | (top_p < 1) | (min_p > 0)


@triton.jit
def kept_of(
    row_ptr, columns, list_ptr, top, scale, total, top_k, top_p, min_p,
    LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """(threshold, mass of the values at it or above)."""
    threshold, kept = kept_set(
        row_ptr, columns, list_ptr, top, scale, total, top_k, top_p, min_p, LIST, MOST_PASSES
    )
    return threshold, kept
