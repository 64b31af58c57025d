"""The public call of greedy verification."""

from __future__ import annotations

import torch

from specctl_kernels.dependent_launch import launched_early
from specctl_kernels.row_argmax import row_partials
from specctl_kernels.sizes import power_of_2
from specctl_kernels.verify_greedy.kernel import accept_kernel

__all__ = ["NO_TOKEN", "verify_greedy"]

NO_TOKEN = -1


def verify_greedy(
    logits: torch.Tensor, drafts: torch.Tensor, starts: torch.Tensor, *, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that each of R requests emits, and how many, from one read of the logits.

    A draft is kept while it is the target's first largest logit; the first that is not is replaced by it, and
    after the last draft one more token follows: greedy decoding, token for token.

    logits  [N, V], rows contiguous, any float type; a NaN is never the largest
    drafts  integer[N]: the token that each row was fed; a request's first row holds no draft, and a draft
            under 0 is never kept
    starts  int32[R + 1], the first row of each request, ending with N; a request has at most ``width`` rows
    Returns int64[R, width], ``NO_TOKEN`` behind the emitted ones, and int32[R], 0 for a request without rows.
    ValueError: drafts of another length than the logits.
    """
    if drafts.shape != logits.shape[:1]:
        raise ValueError(f"drafts: expected one of each of {logits.shape[0]} rows, got {tuple(drafts.shape)}")
    requests = starts.shape[0] - 1
    partials = row_partials(logits)
    tokens = logits.new_empty((requests, width), dtype=torch.int64)
    counts = logits.new_empty(requests, dtype=torch.int32)
    if requests:
        accept_kernel[(requests,)](
            partials.best, partials.at, partials.pieces, drafts, starts, tokens, tokens.stride(0), counts,
            width, NO_TOKEN=NO_TOKEN, ROWS=power_of_2(width, 2), PADDED=partials.padded,
            num_warps=4, **launched_early(logits.device),
        )  # fmt: skip
    return tokens, counts
