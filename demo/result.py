"""What the rounds say: speeds with their spread, whether outputs are the same, and one verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from demo.arms import ArmRun
from demo.phases import PHASES

__all__ = ["OFF", "OURS", "Result", "Speed", "identical_outputs"]

OFF, OURS = "off", "specctl"
NOISE_MIN_RATIO = 0.03
"""Two speeds that differ by less are level, however small their spread looks in a few rounds."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second over the rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread_ratio(self) -> float:
        """Half of the range, as a share of the median."""
        return (max(self.values) - min(self.values)) / 2 / self.median if self.median else 0.0

    def __str__(self) -> str:
        return f"{self.median:.1f} ({min(self.values):.1f} to {max(self.values):.1f})"


class Result:
    """``rounds``: the arms' runs of each round, in any order. ``arms``: names, constants first."""

    def __init__(self, rounds: Sequence[Sequence[ArmRun]], arms: Sequence[str]) -> None:
        self.rounds, self.arms = rounds, tuple(arms)
        self.by_phase = [
            {arm: Speed(tuple(run.loads[i].tokens_per_s for run in self._runs(arm))) for arm in self.arms}
            for i in range(len(PHASES))
        ]
        self.overall = {arm: Speed(tuple(run.tokens_per_s for run in self._runs(arm))) for arm in self.arms}

    def _runs(self, arm: str) -> list[ArmRun]:
        return [run for runs in self.rounds for run in runs if run.name == arm]

    @property
    def best_constant(self) -> str:
        constants = [arm for arm in self.arms if arm != OURS]
        return max(constants, key=lambda arm: self.overall[arm].median)

    @property
    def noise_ratio(self) -> float:
        """What a difference between specctl and the best constant must exceed to count."""
        spreads = [self.overall[arm].spread_ratio for arm in (OURS, self.best_constant)]
        return max(NOISE_MIN_RATIO, *spreads)

    def ratio(self, arm: str) -> float:
        """specctl over that arm, over all phases."""
        return self.overall[OURS].median / self.overall[arm].median

    @property
    def outputs(self) -> tuple[int, int]:
        """(identical, compared): outputs of the same prompt in the same phase under different arms."""
        return identical_outputs(self.rounds, len(PHASES))

    @property
    def is_behind(self) -> bool:
        """Slower than the best constant by more than the noise."""
        return self.ratio(self.best_constant) < 1.0 - self.noise_ratio

    @property
    def verdict(self) -> str:
        best, ratio = self.best_constant, self.ratio(self.best_constant)
        against = (
            "behind" if self.is_behind else ("ahead of" if ratio > 1.0 + self.noise_ratio else "level with")
        )
        losers = [
            f"{arm} loses {1.0 - speeds[arm].median / max(s.median for s in speeds.values()):.0%} in "
            f'"{phase.name}"'
            for arm in self.arms
            if arm != OURS
            for phase, speeds in [
                min(zip(PHASES, self.by_phase, strict=True), key=lambda one: _worst(one[1], arm))
            ]
        ]
        return (
            f"specctl is {against} the best constant ({best}: x {ratio:.2f}, noise {self.noise_ratio:.0%}) "
            f"and x {self.ratio(OFF):.2f} of off; {'; '.join(losers)}"
        )


def identical_outputs(rounds: Sequence[Sequence[ArmRun]], phases: int) -> tuple[int, int]:
    """(identical, compared): outputs of a prompt in a phase, each against the first."""
    same = compared = 0
    for i in range(phases):
        texts: dict[str, str] = {}
        for runs in rounds:
            for run in runs:
                for prompt, text in run.loads[i].outputs.items():
                    if prompt in texts:
                        compared += 1
                        same += texts[prompt] == text
                    texts.setdefault(prompt, text)
    return same, compared


def _worst(speeds: dict[str, Speed], arm: str) -> float:
    return speeds[arm].median / max(speed.median for speed in speeds.values())
