"""What a poll brings: counters' gains since the last one, and what is in force. Frozen; units stand in the
names; None means "not measured"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specctl.contract.adaptivity import AdaptivityState
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable
from specctl.contract.telemetry import AcceptanceGroup, SelfChecks, ShadowAcceptance, TelemetryCell

__all__ = ["Histogram", "Observation", "StockDelta"]


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts[i]`` values are at most ``upper[i]``; the last ones are above every edge."""

    upper: tuple[float, ...]
    counts: tuple[float, ...]

    def quantile(self, share: float) -> float | None:
        """Linear inside a bin; above the last edge: that edge. None: empty, or without an edge."""
        total = sum(self.counts)
        if total <= 0 or not self.upper:
            return None
        left, lower = share * total, 0.0
        for upper, count in zip(self.upper, self.counts, strict=False):
            if count > 0 and left <= count:
                return lower + (upper - lower) * left / count
            left, lower = left - count, upper
        return lower

    def mean(self) -> float | None:
        """By the middles of the bins. None: empty, or without an edge."""
        total = sum(self.counts)
        if total <= 0 or not self.upper:
            return None
        lowers, uppers = (0.0, *self.upper), (*self.upper, self.upper[-1])
        middles = [(low + high) / 2 for low, high in zip(lowers, uppers, strict=True)]
        return sum(m * count for m, count in zip(middles, self.counts, strict=True)) / total


@dataclass(frozen=True, slots=True)
class StockDelta:
    """What the engine's own /metrics tell of the interval. ``drafts`` leaves out steps without a draft.

    ``ttft``: of requests that got their first token; ``tpot``: of requests that finished (vLLM), of tokens
    (SGLang).
    """

    drafts: int | None
    accepted_at: tuple[int, ...] | None
    ttft: Histogram | None = None
    tpot: Histogram | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at one target. ``time_s`` is the clock's monotonic time.

    ``cells``, ``shadow`` and ``groups`` hold what the telemetry's counters gained since the last look.
    ``interval_s`` and everything that is a difference are None after a start, a reset or a failed read;
    ``gaps`` says why.
    """

    target: str
    time_s: float
    interval_s: float | None = None
    capabilities: Capabilities | None = None
    applied: AppliedTable | None = None
    cells: tuple[TelemetryCell, ...] | None = None
    shadow: ShadowAcceptance | None = None
    groups: tuple[AcceptanceGroup, ...] = ()
    stock: StockDelta | None = None
    adaptivity: AdaptivityState | None = None
    self_checks: SelfChecks | None = None
    front_end_waiting_pieces: int | None = None
    running: int | None = None
    waiting: int | None = None
    decoding: int | None = None
    kv_cache_used_ratio: float | None = None
    failures: Mapping[str, float] = field(default_factory=dict)
    may_act: bool = True
    why_not_act: str | None = None
    gaps: tuple[str, ...] = ()

    @property
    def boot_id(self) -> str | None:
        """Of this start of the engine; None for a stock server."""
        return None if self.capabilities is None else self.capabilities.boot_id

    @property
    def emitted_tokens(self) -> int | None:
        return None if self.cells is None else sum(cell.emitted_tokens for cell in self.cells)
