"""Mean time to the first token, and the steps that it was measured among. No I/O, no clock.

Engines tell it now and then (every 5 s beside the plugin), and a table may change meanwhile. So the steps of
the same looks are kept beside it: another setting is compared with the steps as they were, not with the
setting in force now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from specctl.types import Observation, TtftEstimate

__all__ = ["MeanTtft"]

HALF_LIFE_S = 15.0
# Fewer first tokens than this, discounted, are not a mean.
REQUESTS_MIN = 3.0


class _Sums(NamedTuple):
    """Discounted. ``steps``, ``step_s``, ``emitted_tokens``: of decode-only steps."""

    requests: float = 0.0
    wait_s: float = 0.0
    looks: float = 0.0
    queued_looks: float = 0.0
    steps: float = 0.0
    step_s: float = 0.0
    emitted_tokens: float = 0.0

    def plus(self, other: _Sums, factor: float) -> _Sums:
        """``other``, and of this one the share that is not forgotten."""
        return _Sums(
            requests=self.requests * factor + other.requests,
            wait_s=self.wait_s * factor + other.wait_s,
            looks=self.looks * factor + other.looks,
            queued_looks=self.queued_looks * factor + other.queued_looks,
            steps=self.steps * factor + other.steps,
            step_s=self.step_s * factor + other.step_s,
            emitted_tokens=self.emitted_tokens * factor + other.emitted_tokens,
        )


_NOTHING = _Sums()


@dataclass(frozen=True, slots=True)
class MeanTtft:
    """``open``: since the last reading of the engine's own metrics; ``known``: up to it."""

    known: _Sums = _NOTHING
    open: _Sums = _NOTHING
    open_s: float = 0.0

    def updated(self, observation: Observation) -> Self:
        cells = [cell for cell in observation.cells or () if not cell.has_prefill]
        look = _Sums(
            looks=1.0,
            queued_looks=1.0 if observation.waiting else 0.0,
            steps=sum(cell.steps for cell in cells),
            step_s=sum(cell.step_s for cell in cells),
            emitted_tokens=sum(cell.emitted_tokens for cell in cells),
        )
        opened = self.open.plus(look, 1.0)
        open_s = self.open_s + (observation.interval_s or 0.0)
        stock = observation.stock
        if stock is None or stock.started_requests is None or stock.first_token_wait_s is None:
            return type(self)(self.known, opened, open_s)
        read = opened._replace(requests=float(stock.started_requests), wait_s=stock.first_token_wait_s)
        known = self.known.plus(read, 0.5 ** (open_s / HALF_LIFE_S))
        return type(self)(known)

    def estimate(self) -> TtftEstimate | None:
        """None: too few first tokens of late, or no decode-only step among them."""
        known = self.known
        fresh = 0.5 ** (self.open_s / HALF_LIFE_S)
        if known.requests * fresh < REQUESTS_MIN or known.emitted_tokens <= 0 or known.step_s <= 0:
            return None
        return TtftEstimate(
            ttft_s=known.wait_s / known.requests,
            step_s=known.step_s / known.steps,
            tokens_per_s=known.emitted_tokens / known.step_s,
            is_queued=known.queued_looks > known.looks / 2,
        )
