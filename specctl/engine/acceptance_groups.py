"""Monotonic counters of request-steps by how often the request's drafts have been accepted so far.

The share of steps that accepted the first drafted token is kept on the request itself, so that it ends with
the request. On the same sample of steps as the classes: it takes 0.2 us a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specctl.contract.telemetry import AcceptanceGroup
from specctl.engine.step_counters import reached_and_accepted

__all__ = ["GROUPS", "AcceptanceGroups"]

GROUPS = 4
"""Equal parts of the share."""
_PER_SHARE = GROUPS - 1e-6
_NEW_SHARE = 0.5
_SHARE_STEP = 0.25
"""The share is a moving mean, mostly of the last seven steps that were counted."""


class AcceptanceGroups:
    """Used from one thread."""

    def __init__(self, num_speculative_tokens_max: int) -> None:
        self._depths = num_speculative_tokens_max
        self._histograms: dict[int, list[list[int]]] = {}
        """By setting: [group][accepted tokens]."""

    def arrived(self, request: Any) -> None:
        """Once or again: a request keeps its share."""
        request.specctl_share = getattr(request, "specctl_share", _NEW_SHARE)

    def add(self, num_speculative_tokens: int, requests: Sequence[Any], accepted: Sequence[int]) -> None:
        """Count a step. Each request is counted by its earlier steps; this one counts for its later ones."""
        groups = self._histograms.get(num_speculative_tokens)
        if groups is None:
            groups = [[0] * (self._depths + 1) for _ in range(GROUPS)]
            self._histograms[num_speculative_tokens] = groups
        for request, tokens in zip(requests, accepted, strict=True):
            share = request.specctl_share
            groups[int(share * _PER_SHARE)][tokens] += 1
            if num_speculative_tokens:
                request.specctl_share = share + _SHARE_STEP * ((tokens > 0) - share)

    def snapshot(self) -> tuple[AcceptanceGroup, ...]:
        """From the least accepted requests to the most."""
        return tuple(map(self._message, range(GROUPS)))

    def _message(self, group: int) -> AcceptanceGroup:
        histograms = {setting: groups[group] for setting, groups in self._histograms.items()}
        reached_at, accepted_at = reached_and_accepted(histograms, self._depths)
        return AcceptanceGroup(
            request_steps=sum(map(sum, histograms.values())), reached_at=reached_at, accepted_at=accepted_at
        )
