"""What the decision core remembers between two ticks. Immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specctl.controller.least_chances import Wishes
from specctl.controller.rest import NO_REST, Rest
from specctl.controller.ttft import MeanTtft
from specctl.estimate.base import StepCostModel, SurvivalModel

__all__ = ["ControllerState", "Probe", "ProbeSchedule"]


@dataclass(frozen=True, slots=True)
class Probe:
    """An excursion that runs now in one bucket. ``resume``: the value it came from.

    ``steps`` and ``drafted_tokens``: what its bucket did at its value so far. ``price_ratio``: share of the
    bucket's tokens that it was expected to lose while it runs.
    """

    bucket_to: int
    num_speculative_tokens: int
    resume_num_speculative_tokens: int
    started_s: float
    price_ratio: float = 1.0
    steps: int = 0
    drafted_tokens: int = 0

    @property
    def is_empty(self) -> bool:
        """It asked for drafts and the proposer had none: it told nothing and cost nothing."""
        return self.num_speculative_tokens > 0 and self.drafted_tokens == 0


@dataclass(frozen=True, slots=True)
class ProbeSchedule:
    """``interval_s``: the last wait, doubled after every probe that changed nothing; 0 before the first.

    ``ended_s``, ``price_ratio``: of the last probe that met a draft. ``soonest_s``: not before, whatever the
    traffic does. ``bucket_to``: the busiest bucket of the last tick with traffic.
    """

    running: Probe | None = None
    next_s: float = 0.0
    interval_s: float = 0.0
    ended_s: float = float("-inf")
    soonest_s: float = float("-inf")
    price_ratio: float = 1.0
    bucket_to: int | None = None


@dataclass(frozen=True, slots=True)
class ControllerState:
    """``changed_s``: when each bucket last changed; ``change_times_s``: table changes of the last minute.
    ``wishes``: for the least chance of a verified token."""

    survival: SurvivalModel
    cost: StepCostModel
    changed_s: Mapping[int, float] = field(default_factory=dict)
    change_times_s: tuple[float, ...] = ()
    batch_sums: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    schedule: ProbeSchedule = ProbeSchedule()
    ttft: MeanTtft = field(default_factory=MeanTtft)
    rest: Rest = NO_REST
    wishes: Wishes = field(default_factory=dict)
