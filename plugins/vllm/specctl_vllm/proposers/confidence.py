"""How sure a draft is, for an engine that verifies the likeliest drafts of all requests."""

from __future__ import annotations

import torch

__all__ = ["confidences"]


def confidences(survival: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """float32[n, K]: the chance of each draft once those before it are accepted; 0 where there is no draft.

    survival float32[n, K], the chance that a draft and all before it are accepted; counts int[n].
    """
    before = torch.nn.functional.pad(survival[:, :-1], (1, 0), value=1.0)
    is_draft = torch.arange(survival.shape[1], device=survival.device) < counts[:, None]
    return torch.where(is_draft, survival / before.clamp(min=1e-6), 0.0).clamp(max=1.0)
