"""The target's last rows of each request while no draft model runs, so that one can go on from there.

At 0 drafts a head that reads every token costs what being off is to save. So it reads none, and its KV cache
lacks them; when drafts are wanted again it reads the last ones that are kept here.
"""

from __future__ import annotations

import torch

__all__ = ["RecentRows", "chunk"]


class RecentRows:
    """A ring for each of the engine's rows of requests, by the position in the text."""

    def __init__(self, requests: int, kept: int, hidden_size: int, like: torch.Tensor) -> None:
        """like: of the hidden states' dtype and device."""
        self.kept = kept
        self._tokens = torch.zeros((requests, kept), dtype=torch.int64, device=like.device)
        self._hidden = torch.zeros((requests, kept, hidden_size), dtype=like.dtype, device=like.device)

    def put(
        self, requests: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor, hidden: torch.Tensor
    ) -> None:
        """requests and positions integer[n], the token after each position [n], its hidden state [n, H]."""
        place = requests.long(), positions.long() % self.kept
        self._tokens[place] = tokens.to(torch.int64)
        self._hidden[place] = hidden.to(self._hidden.dtype)

    def take(
        self, requests: torch.Tensor, starts: torch.Tensor, rows: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """int64[n, rows] tokens and [n, rows, H] hidden states from the positions ``starts`` on."""
        positions = starts.long()[:, None] + torch.arange(rows, device=starts.device)
        place = requests.long()[:, None], positions % self.kept
        return self._tokens[place], self._hidden[place]

    @property
    def nbytes(self) -> int:
        return self._tokens.nbytes + self._hidden.nbytes


def chunk(ends: torch.Tensor, missed: torch.Tensor, at: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a pass of ``rows`` rows begins and how many of them it is to read, integer[n] each: of the last
    ``missed`` positions before ``ends`` those from the ``at``-th on."""
    known = (missed - at).clamp(0, rows)
    return torch.minimum(ends - missed + at, ends), known
