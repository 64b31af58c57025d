"""The rows of a parallel draft pass (arXiv 2602.01469, section 3), of one shape for every step.

A request's rows are its accepted ones, each with the token after it, then K - 1 mask rows: K drafts come from
the last accepted row and the mask rows. What is left are mask rows that nobody reads.
"""

from __future__ import annotations

import torch

__all__ = ["is_worth_a_pass", "last_rows", "pass_rows", "rows_of_pass"]


def rows_of_pass(num_speculative_tokens: int) -> int:
    """Of each request: what a verification of so many drafts can accept, the target's own token included, and
    the mask rows."""
    return 2 * num_speculative_tokens


def is_worth_a_pass(without_drafts: int, requests: int) -> bool:
    """Whether drafts for some requests of a decode batch are worth a pass of their own, which runs for all.

    It takes about a quarter of a step, in which each of the requests would emit tau tokens, and gains tau - 1
    for each that is without: it pays where they are more than tau / (4 (tau - 1)) of all. That is 0.38 at 3
    tokens a step and 0.33 at 4: a third.
    """
    return 3 * without_drafts > requests


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
