"""Drafts that a grammar forbids, where drafts have a distribution.

With asynchronous scheduling such drafts are proposed before the grammar has seen them, and vLLM replaces them
and what follows by -1. In the place of a rejected draft comes a sample of max(p - q, 0) (Leviathan et al.
2023, section 2.3; p: the target's law under the grammar, q: the draft's). A draft without its token has no q:
vLLM samples p there, and what the head prefers comes too often.
"""

from __future__ import annotations

import torch

__all__ = ["with_forbidden"]


def with_forbidden(logits: torch.Tensor, drafts: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """int[rows] as ``valid``; but the first -1 of a request is its token again where the row that verifies it
    cannot sample it: it is rejected all the same, with its residual.

    Args:
        logits: [rows, V], the grammar's mask in them; a row verifies the draft of the row behind it.
        drafts: int[rows], what was fed; the first row of a request is no draft.
        valid: int[rows], ``drafts`` with -1 where a grammar forbids the token and behind it.
    """
    is_forbidden = valid != drafts
    is_first = is_forbidden[1:] & ~is_forbidden[:-1]
    tokens, columns = drafts[1:], logits.shape[1]
    scores = logits[:-1].gather(1, tokens.long().clamp(0, columns - 1)[:, None])[:, 0]
    is_impossible = (scores == float("-inf")) & (tokens >= 0) & (tokens < columns)
    return torch.cat([valid[:1], torch.where(is_first & is_impossible, tokens, valid[1:])])
