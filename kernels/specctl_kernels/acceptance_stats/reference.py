"""The same in plain Python."""

from __future__ import annotations

import torch

from specctl_kernels.acceptance_stats.launch import AcceptanceCounts

__all__ = ["add_reference"]


def add_reference(
    sums: AcceptanceCounts,
    counts: torch.Tensor,
    starts: torch.Tensor,
    *,
    drafts: torch.Tensor | None = None,
    classes: torch.Tensor | None = None,
) -> None:
    """As ``AcceptanceStats.add``, into ``sums``."""
    kinds, positions = sums.reached.shape
    for req, emitted in enumerate(counts.tolist()):
        own = int(classes[req]) if classes is not None else 0
        if not 0 <= own < kinds:
            continue
        if emitted < 0:
            sums.not_finite[own] += 1
            continue
        sums.steps[own] += emitted > 0
        first, end = starts[req : req + 2].tolist()
        fed = drafts[first + 1 : end].tolist() if drafts is not None else [0] * (end - first - 1)
        for position, draft in enumerate(fed[:positions]):
            if draft < 0 or emitted <= position:
                break
            sums.reached[own, position] += 1
            sums.accepted[own, position] += emitted > position + 1
