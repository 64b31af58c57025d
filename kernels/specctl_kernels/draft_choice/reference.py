"""The same choice in plain Python."""

from __future__ import annotations

import torch

from specctl_kernels.draft_choice.launch import DECAY, HEAD, NONE, SUFFIX, DraftChoice

__all__ = ["draft_choice_reference"]


def draft_choice_reference(
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
    """As ``draft_choice``."""
    n, width = drafts.shape
    reached, accepted = [0.0] * width, [0.0] * width
    for req in range(n):
        slot, sampled = int(requests[req]), int(num_sampled[req])
        verified = int(starts[req + 1] - starts[req]) - 1
        if slot < 0 or sampled == 0 or choice.sources[slot] != HEAD or verified > width:
            continue
        for position in range(min(sampled, verified)):
            reached[position] += 1
            accepted[position] += position < sampled - 1
    for position in range(width):
        if reached[position]:
            choice.reached[position] = choice.reached[position] * DECAY + reached[position]
            choice.accepted[position] = choice.accepted[position] * DECAY + accepted[position]
    chances = (choice.accepted / choice.reached)[:wanted]
    of_head = float(chances.cumprod(0).sum())
    choice.gain.zero_()
    for req in range(n):
        slot, count = int(requests[req]), min(int(suffix_counts[req]), wanted)
        of_suffix = float(suffix_probs[req, :count].sum())
        is_drafting = slot >= 0 and num_sampled[req] > 0
        source = NONE
        if is_drafting and of_suffix > 0 and (of_suffix >= of_head or not has_head):
            source = SUFFIX
            drafts[req] = suffix_drafts[req]
        elif is_drafting and has_head:
            source = HEAD
        else:
            drafts[req] = 0
        if slot >= 0:
            choice.sources[slot] = source
        if is_drafting:
            choice.gain += torch.tensor(
                [max(of_head - of_suffix, 0.0), 1.0 + of_suffix, source == SUFFIX, source == HEAD]
            )
