"""The rows of a parallel draft pass (arXiv 2602.01469, section 3), of one shape for every step.

A request's rows are its accepted ones, each with the token after it, then K - 1 mask rows: K drafts come from
the last accepted row and the mask rows. What is left are mask rows that nobody reads.
"""

from __future__ import annotations

import torch

__all__ = ["last_rows", "pass_rows", "rows_of_pass"]


def rows_of_pass(num_speculative_tokens: int) -> int:
    """Of each request: what a verification of so many drafts can accept, the target's own token included, and
    the mask rows."""
    return 2 * num_speculative_tokens


def pass_rows(
    tokens: torch.Tensor,
    hidden: torch.Tensor,
    known: torch.Tensor,
    mask_token_id: int,
    mask_hidden: torch.Tensor,
    rows: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """int64[n, rows] token ids and [n, rows, H] hidden states, without a synchronisation.

    tokens       int64[n, w], the token after each verified row
    hidden       [n, w, H], the target's hidden states of the verified rows
    known        integer[n], at most min(w, rows): how many of them were accepted
    mask_hidden  [H]
    """
    row = torch.arange(rows, device=tokens.device)
    source = row.clamp(max=tokens.shape[1] - 1)
    is_known = row < known[:, None]
    ids = torch.where(is_known, tokens[:, source], mask_token_id)
    return ids, torch.where(is_known[..., None], hidden[:, source], mask_hidden.to(hidden.dtype))


def last_rows(hidden: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """[n, H]: of [n, w, H] the last accepted row of each request."""
    request = torch.arange(hidden.shape[0], device=hidden.device)
    return hidden[request, known.long() - 1]
