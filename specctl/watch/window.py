"""Sums over the last seconds of one target: what was emitted, drafted and accepted. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import isfinite
from operator import mul

from specctl.contract.telemetry import TelemetryCell
from specctl.core.messages import Choice
from specctl.types import Observation

__all__ = ["PART_S", "WINDOW_S", "Interval", "Window", "of_poll"]

WINDOW_S = 30.0
PART_S = 2.0


@dataclass(slots=True)
class Interval:
    """Of one poll, or of several. Seconds and tokens are sums.

    ``decode_*``: of steps without prompts whose bucket has a forecast for the setting in force and for off.
    ``off_s``: the seconds that those steps would take for the same tokens with speculation off.
    ``reached_at[j]``: request-steps that could draft more than j tokens, and whose first j were all accepted.
    """

    interval_s: float = 0.0
    emitted_tokens: int = 0
    decode_tokens: int = 0
    decode_s: float = 0.0
    off_s: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    verified_tokens: int = 0
    reached_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    shadow_drafts: int = 0
    shadow_at: list[int] = field(default_factory=list)
    stock_drafts: int = 0
    stock_at: list[int] = field(default_factory=list)

    def add(self, other: Interval) -> None:
        for name in self.__slots__:
            mine, more = getattr(self, name), getattr(other, name)
            if isinstance(mine, list):
                _add_at(mine, more)
            else:
                setattr(self, name, mine + more)

    @property
    def emitted_tokens_per_s(self) -> float | None:
        """Of the wall clock; None: no interval was measured."""
        return self.emitted_tokens / self.interval_s if self.interval_s > 0 else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Of the step seconds of decoding; None: no such step, or no forecast to compare with."""
        return self.decode_tokens / self.decode_s if self.decode_s > 0 else None

    @property
    def off_tokens_per_s(self) -> float | None:
        """Predicted for the same steps with speculation off."""
        return self.decode_tokens / self.off_s if self.off_s > 0 else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens; None: nothing was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

    @property
    def acceptance_length(self) -> float | None:
        """Mean emitted tokens of a request-step that could draft, the +1 included."""
        if any(self.reached_at):
            return 1.0 + self.accepted_tokens / self.reached_at[0]
        return 1.0 + sum(self.stock_at) / self.stock_drafts if self.stock_drafts else None

    @property
    def efficiency(self) -> float | None:
        """Emitted tokens / positions that the target scored, of steps that could draft."""
        if not self.verified_tokens or not any(self.reached_at):
            return None
        return (self.reached_at[0] + self.accepted_tokens) / self.verified_tokens

    @property
    def survival_at(self) -> tuple[float, ...] | None:
        """Share of drafts whose first j + 1 tokens were all accepted. From shadow drafts where the engine
        follows them, else from the steps. None: nothing was drafted."""
        if self.shadow_drafts:
            return _shares(self.shadow_at, [self.shadow_drafts] * len(self.shadow_at))
        if any(self.reached_at):
            # Kaplan and Meier: steps that could draft fewer tokens say nothing of the later ones.
            return tuple(accumulate(_shares(self.accepted_at, self.reached_at), mul))
        if self.stock_drafts:
            return _shares(self.stock_at, [self.stock_drafts] * len(self.stock_at))
        return None


class Window:
    """The intervals of the last ``WINDOW_S`` seconds, in parts of some polls each."""

    def __init__(self) -> None:
        self._parts: deque[Interval] = deque()

    def add(self, interval: Interval) -> Interval | None:
        """Returns a part that is complete now."""
        parts = self._parts
        if not parts or parts[-1].interval_s >= PART_S:
            parts.append(Interval())
            while sum([part.interval_s for part in parts]) >= WINDOW_S + PART_S:
                parts.popleft()
        parts[-1].add(interval)
        return parts[-1] if parts[-1].interval_s >= PART_S else None

    def total(self) -> Interval:
        total = Interval()
        for part in self._parts:
            total.add(part)
        return total


def of_poll(observation: Observation, choices: Sequence[Choice]) -> Interval | None:
    """What a poll brought; None: nothing was measured. ``choices``: of the plan that followed from it."""
    interval = Interval(interval_s=observation.interval_s or 0.0)
    stock, shadow = observation.stock, observation.shadow
    if observation.cells is None:
        if stock is None or stock.accepted_at is None or not stock.drafts:
            return None
        interval.stock_drafts, interval.stock_at = stock.drafts, list(stock.accepted_at)
        return interval
    ratios = {one.last: _over_off(one) for one in choices}
    for cell in observation.cells:
        interval.emitted_tokens += cell.emitted_tokens
        _count_drafts(interval, cell)
        ratio = ratios.get(cell.decode_batch_to)
        if ratio is not None and not cell.has_prefill and cell.step_s > 0:
            interval.decode_tokens += cell.emitted_tokens
            interval.decode_s += cell.step_s
            interval.off_s += cell.step_s * (ratio if cell.num_speculative_tokens else 1.0)
    if shadow is not None and shadow.drafts:
        interval.shadow_drafts, interval.shadow_at = shadow.drafts, list(shadow.accepted_at)
    return interval


def _count_drafts(interval: Interval, cell: TelemetryCell) -> None:
    if not cell.num_speculative_tokens or not cell.request_steps:
        return
    interval.drafted_tokens += sum(cell.drafted_at)
    interval.accepted_tokens += sum(cell.accepted_at)
    interval.verified_tokens += cell.verified_tokens
    accepted = cell.accepted_at[: cell.num_speculative_tokens]
    _add_at(interval.reached_at, (cell.request_steps, *accepted)[: cell.num_speculative_tokens])
    _add_at(interval.accepted_at, accepted)


def _over_off(choice: Choice) -> float | None:
    """Predicted tokens per second of the setting in force, over those of off."""
    present, off = choice.present_tokens_per_s, choice.off_tokens_per_s
    if present is None or off is None or off <= 0:
        return None
    return present / off if isfinite(present / off) else None


def _add_at(sums: list[int], more: Sequence[int]) -> None:
    if len(more) > len(sums):
        sums.extend([0] * (len(more) - len(sums)))
    for j, count in enumerate(more):
        sums[j] += count


def _shares(counts: Sequence[int], wholes: Sequence[int]) -> tuple[float, ...]:
    return tuple((counts[j] if j < len(counts) else 0) / whole for j, whole in enumerate(wholes) if whole)
