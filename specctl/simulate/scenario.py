"""How well drafts are accepted: by request class, position and time."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from specctl.yaml_model import load_model

__all__ = ["AcceptanceClass", "AcceptancePoint", "MixPoint", "Scenario", "load_scenario"]

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
BIN_S = 0.5
DAY_S = 86_400.0
_Chance = Annotated[float, Field(ge=0, le=1)]


class AcceptancePoint(BaseModel):
    """The law from ``from_s`` on: chance that position j is accepted, given that it was reached."""

    model_config = STRICT

    from_s: float = Field(ge=0, le=DAY_S)
    conditional_at: tuple[_Chance, ...] = Field(
        min_length=1, max_length=64, description="by position; the last one serves all later positions"
    )


class AcceptanceClass(BaseModel):
    """A share of the requests with a law of its own."""

    model_config = STRICT

    name: str = Field(min_length=1, max_length=64)
    share: float = Field(gt=0, le=1, description="of the requests, drawn by request")
    points: tuple[AcceptancePoint, ...] = Field(min_length=1, max_length=64)
    runner_up_shares: tuple[_Chance, ...] = Field(
        default=(),
        max_length=63,
        description="of the positions that the draft's first choice misses: the share that its second, "
        "third, ... choice hits; it matters for trees only",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(self.runner_up_shares) > 1.0 + 1e-6:
            raise ValueError(
                f"runner_up_shares: expected shares that add up to at most 1, got {self.runner_up_shares}"
            )
        times = [point.from_s for point in self.points]
        if times[0] != 0 or any(late <= early for early, late in pairwise(times)):
            raise ValueError(f"points: expected from_s rising from 0, got {times}")
        return self


class MixPoint(BaseModel):
    """The classes' shares of the requests that arrive from ``from_s`` on."""

    model_config = STRICT

    from_s: float = Field(ge=0, le=DAY_S)
    shares: tuple[_Chance, ...] = Field(min_length=1, max_length=16, description="in the classes' order")


class Scenario(BaseModel):
    """Classes and their laws. ``between``: what holds between two points; ``repeat_s``: starts anew after
    it."""

    model_config = STRICT

    name: str = Field(min_length=1, max_length=64)
    between: Literal["step", "line"] = "step"
    repeat_s: float | None = Field(default=None, gt=0, le=DAY_S)
    classes: tuple[AcceptanceClass, ...] = Field(min_length=1, max_length=16)
    mix: tuple[MixPoint, ...] = Field(
        default=(), max_length=64, description="in place of the classes' share; it steps, and starts anew too"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        total = sum(one.share for one in self.classes)
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            raise ValueError(f"classes: expected shares that add up to 1, got {total:g}")
        for point in self.mix:
            if len(point.shares) != len(self.classes) or not math.isclose(
                sum(point.shares), 1.0, abs_tol=1e-6
            ):
                raise ValueError(
                    f"mix: expected {len(self.classes)} shares that add up to 1, got {point.shares}"
                )
        times = [point.from_s for point in self.mix]
        if times and (times[0] != 0 or any(late <= early for early, late in pairwise(times))):
            raise ValueError(f"mix: expected from_s rising from 0, got {times}")
        latest = max(*(one.points[-1].from_s for one in self.classes), *times, 0.0)
        if self.repeat_s is not None and latest > self.repeat_s:
            raise ValueError(f"repeat_s: expected at least the last from_s {latest:g}, got {self.repeat_s:g}")
        return self

    def shares_at(
        self, arrival_s: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Rows of shares by class, and which row is that of each arrival."""
        if not self.mix:
            return np.array([[one.share for one in self.classes]]), np.zeros(len(arrival_s), np.int64)
        times = arrival_s if self.repeat_s is None else arrival_s % self.repeat_s
        starts = np.array([point.from_s for point in self.mix])
        rows = np.searchsorted(starts, times, side="right") - 1
        return np.array([point.shares for point in self.mix]), rows.astype(np.int64)

    def grid(self, positions: int) -> npt.NDArray[np.float64]:
        """[bin of BIN_S seconds, class, position]: the law; times over the last bin take it, or wrap."""
        latest = max(one.points[-1].from_s for one in self.classes)
        length_s = self.repeat_s if self.repeat_s is not None else latest + BIN_S
        times = np.arange(math.ceil(length_s / BIN_S), dtype=np.float64) * BIN_S
        return np.stack([self._of_class(one, times, positions) for one in self.classes], axis=1)

    def runner_ups(self, tree_topk: int) -> npt.NDArray[np.float64]:
        """[class, rank - 1]; 0 for ranks that a class does not name."""
        shares = np.zeros((len(self.classes), max(tree_topk - 1, 0)))
        for one, row in zip(self.classes, shares, strict=True):
            named = one.runner_up_shares[: row.size]
            row[: len(named)] = named
        return shares

    def scaled(self, speed: float) -> Scenario:
        """The laws change ``speed`` times as soon; those that would hold from later than DAY_S are left
        out."""
        fields = self.model_dump()
        for one in fields["classes"]:
            for point in one["points"]:
                point["from_s"] /= speed
            one["points"] = [point for point in one["points"] if point["from_s"] <= DAY_S]
        for point in fields["mix"]:
            point["from_s"] /= speed
        fields["mix"] = [point for point in fields["mix"] if point["from_s"] <= DAY_S]
        if self.repeat_s is not None:
            fields["repeat_s"] = min(self.repeat_s / speed, DAY_S)
        return Scenario.model_validate(fields)

    def _of_class(
        self, one: AcceptanceClass, times: npt.NDArray[np.float64], positions: int
    ) -> npt.NDArray[np.float64]:
        starts = np.array([point.from_s for point in one.points])
        laws = np.array([_padded(point.conditional_at, positions) for point in one.points])
        if self.between == "step":
            return laws[np.searchsorted(starts, times, side="right") - 1]
        return np.stack([np.interp(times, starts, laws[:, j]) for j in range(positions)], axis=1)


def _padded(values: tuple[float, ...], positions: int) -> list[float]:
    return [values[min(j, len(values) - 1)] for j in range(positions)]


def load_scenario(path: Path) -> Scenario:
    """Raises SimulationInputError."""
    return load_model(path, Scenario)
