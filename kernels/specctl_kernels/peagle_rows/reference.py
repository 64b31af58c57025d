"""The same rows in plain torch."""

from __future__ import annotations

import torch

from specctl_kernels.peagle_rows.launch import PassRows

__all__ = ["peagle_rows_reference"]


def peagle_rows_reference(
    tokens: torch.Tensor,
    hidden: torch.Tensor,
    known: torch.Tensor,
    mask_hidden: torch.Tensor,
    requests: torch.Tensor,
    starts: torch.Tensor,
    slot_table: torch.Tensor,
    *,
    mask_id: int,
    drafts: int,
) -> PassRows:
    """As ``peagle_rows``, without a synchronisation either."""
    n, width = tokens.shape
    rows = 2 * drafts
    row, request = torch.arange(rows, device=tokens.device), torch.arange(n, device=tokens.device)
    source = row.clamp(max=width - 1)
    is_known = row < known[:, None]
    states = torch.where(is_known[..., None], hidden[:, source], mask_hidden.to(hidden.dtype))
    last = (known.long() - 1).clamp(min=0)
    return PassRows(
        ids=torch.where(is_known, tokens[:, source].long(), mask_id).flatten(),
        hidden=states.flatten(0, 1),
        slots=slot_table[requests.long()[:, None], starts.long()[:, None] + row].long().flatten(),
        first=request * rows + last.clamp(max=rows - drafts),
        last_hidden=states[request, last],
    )
