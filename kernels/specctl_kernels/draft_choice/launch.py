"""The public call of the choice between suffix drafts and a draft head's."""

from __future__ import annotations

import torch
import triton

from specctl_kernels.draft_choice.kernel import draft_choice_kernel

__all__ = ["HEAD", "NONE", "SUFFIX", "DraftChoice", "draft_choice"]

NONE, SUFFIX, HEAD = 0, 1, 2
_PRIOR_REACHED = 16.0
_PRIOR_CHANCE = 0.7
DECAY = 1.0 - 1.0 / 256
"""By step in which a head's draft was verified: what was seen 180 steps ago counts half."""


class DraftChoice:
    """What the choice remembers, on the device: of S slots and K positions of a draft."""

    def __init__(self, slots: int, width: int, device: torch.device) -> None:
        self.sources = torch.zeros(slots, dtype=torch.int32, device=device)
        """int32[S]: where each slot's last drafts came from: NONE, SUFFIX or HEAD."""
        self.reached = torch.full((width,), _PRIOR_REACHED, dtype=torch.float32, device=device)
        """float32[K], decayed: how often all drafts of the head before a position were accepted."""
        self.accepted = self.reached * _PRIOR_CHANCE
        self.gain = torch.zeros(4, dtype=torch.float32, device=device)
        """float32[4] of the last call: accepted tokens expected of the head beyond the suffix drafts' over
        the batch; emitted tokens expected without the head; requests with suffix drafts; with the head's."""


def draft_choice(
    choice: DraftChoice,
    drafts: torch.Tensor,
    suffix_drafts: torch.Tensor,
    suffix_probs: torch.Tensor,
    suffix_counts: torch.Tensor,
    requests: torch.Tensor,
    num_sampled: torch.Tensor,
    starts: torch.Tensor,
    *,
    wanted: int,
    has_head: bool,
) -> None:
    """Take each of n requests' drafts from where more accepted tokens are expected, in one launch.

    Expected of suffix drafts are the calibrated chances that come with them; of the head, for every request
    the survival that its accepted drafts show (Kaplan-Meier over the positions reached).

    drafts         integer[n, K] in and out; in: the head's, where it ran
    suffix_drafts  integer[n, K], suffix_probs float32[n, K] (that all up to it are accepted), both contiguous
    suffix_counts  int32[n], how many there are
    requests       integer[n], slots, -1 for none; num_sampled int32[n], 0 while a prompt is unfinished
    starts         int32[n + 1], where the target's rows begin: one more than the drafts that it verified
    wanted         drafts that will be verified; has_head: the head ran in this step
    """
    n, width = drafts.shape
    draft_choice_kernel[(1,)](
        drafts, drafts.stride(0), suffix_drafts, suffix_drafts.stride(0), suffix_probs, suffix_counts,
        requests, num_sampled, starts, choice.sources, choice.reached, choice.accepted, choice.gain,
        n, wanted, int(has_head), DECAY,
        WIDTH=width, REQS=triton.next_power_of_2(choice.sources.shape[0]),
        COLUMNS=max(2, triton.next_power_of_2(width)), num_warps=8,
    )  # fmt: skip
