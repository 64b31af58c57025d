"""Where a simulated engine is not of the form that an estimator may assume."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from specctl.engine.buckets import DecodeBatchBuckets

__all__ = ["PERTURBATIONS", "Perturbation", "joined"]

WAVE_S = 20.0
WAVE_SIZE = 4096
DEVIATIONS_MAX = 2.5
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Perturbation:
    """All at their defaults: seconds and acceptance are just the profile's and the scenario's.

    ``graph_tokens``: a decode-only step is padded to the next of these verified tokens, in the place of the
    profile's graphs; beyond the last it is not padded.
    ``cell_deviation_ratio``: standard deviation of a factor of the seconds, drawn once for each decode-batch
    bucket and setting. ``wave_ratio``: the same of a factor that wanders over some 20 s.
    ``acceptance_fall_ratio``: share of the acceptance that is lost with each doubling of the decode batch.
    ``found_ratio``: share of a request's output for which the proposer finds a draft, in stretches of
    ``stretch_tokens``; elsewhere nothing is drafted.
    ``first_step_s``: how much longer the first step of a setting is, which compiles.
    ``stall_s``: how much longer a step is that stalls (a collection of garbage, another process); one does in
    ``stall_every_s`` of step seconds in the mean.
    ``front_end_s``: what the HTTP server takes to deliver what a request emitted in a step; 0: no time.
    ``telemetry_late_s``: how old the counters are that a daemon reads. For the last ``telemetry_gone_s`` of
    every ``telemetry_gone_every_s`` seconds none can be read.
    """

    graph_tokens: tuple[int, ...] = ()
    cell_deviation_ratio: float = 0.0
    wave_ratio: float = 0.0
    acceptance_fall_ratio: float = 0.0
    found_ratio: float = 1.0
    stretch_tokens: int = 16
    first_step_s: float = 0.0
    stall_s: float = 0.0
    stall_every_s: float = 10.0
    front_end_s: float = 0.0
    telemetry_late_s: float = 0.0
    telemetry_gone_s: float = 0.0
    telemetry_gone_every_s: float = 45.0

    def is_telemetry_gone(self, now_s: float) -> bool:
        every_s = self.telemetry_gone_every_s
        return now_s % every_s >= every_s - self.telemetry_gone_s

    def cell_factors(self, decode_batch_max: int, settings: int, seed: int) -> Floats:
        """[decode batch, setting]."""
        buckets = DecodeBatchBuckets(decode_batch_max)
        drawn = np.random.default_rng([seed, 1]).standard_normal((len(buckets), settings))
        factors = 1.0 + self.cell_deviation_ratio * drawn.clip(-DEVIATIONS_MAX, DEVIATIONS_MAX)
        return np.ascontiguousarray(factors[[buckets.index(n) for n in range(decode_batch_max + 1)]])

    def wave(self, seed: int) -> Floats:
        """By second: an Ornstein-Uhlenbeck process around 1, forgotten over WAVE_S."""
        kept = np.exp(-1.0 / WAVE_S)
        drawn = np.random.default_rng([seed, 2]).standard_normal(WAVE_SIZE)
        level, levels = float(drawn[0]), np.empty(WAVE_SIZE)
        for second, step in enumerate(drawn):
            level = kept * level + np.sqrt(1.0 - kept * kept) * float(step)
            levels[second] = level
        return 1.0 + self.wave_ratio * levels.clip(-DEVIATIONS_MAX, DEVIATIONS_MAX)


def joined(parts: list[Perturbation]) -> Perturbation:
    """All of them at once; what none of them changes keeps its default."""
    plain = Perturbation()
    changed = {
        field.name: getattr(part, field.name)
        for part in parts
        for field in fields(Perturbation)
        if getattr(part, field.name) != getattr(plain, field.name)
    }
    return Perturbation(**changed)


_EACH = {
    "staircase": Perturbation(graph_tokens=tuple(1 << n for n in range(12)), cell_deviation_ratio=0.05),
    "noise": Perturbation(wave_ratio=0.1),
    "batch": Perturbation(acceptance_fall_ratio=0.04),
    "late": Perturbation(telemetry_late_s=2.0),
    "gone": Perturbation(telemetry_gone_s=10.0),
}
PERTURBATIONS = {
    "none": Perturbation(),
    **_EACH,
    "all": joined(list(_EACH.values())),
    "stalls": Perturbation(first_step_s=2.0, stall_s=0.5),
    "stretches": Perturbation(found_ratio=0.4),
}
"""By name, as the closed-loop suite runs them. Stalls and stretches are not among ``all``."""
