"""The regret suite: which cells it runs, how they are summed up, and one cell of a shortened load."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import regret, regret_cells
from benchmarks.closed_loop import closed_tasks
from benchmarks.held_out import HELD_OUT, held_out_tasks
from benchmarks.regret_cells import (
    BEST_STATIC,
    CLAIRVOYANT,
    OFF,
    OURS,
    Case,
    Cell,
    Task,
    TaskOptions,
    summary,
)

OPTIONS = TaskOptions((0,), 50, "balanced", regret.PROFILE, None)


def options(**more: object) -> Namespace:
    usual = {"only": ["closed loop"], "shapes": None, "seeds": 1, "seed": 0, "requests": 50}
    usual |= {"policy": "balanced", "profile": regret.PROFILE, "daemon": None}
    return Namespace(**{**usual, **more})


def cell(regret_ratio: float, back_s: tuple[float, ...] = (), static_ratio: float = 0.1) -> Cell:
    arm = {"tpot_regret_ratio": 0.0, "lost_ratio": 0.0, "switches_per_minute": 1.0, "sampled_cost_ratio": 0.0}
    arm |= {"to_best_static": 1.0 - regret_ratio, "to_off": 1.0, "back_s": []}
    arms = {name: {**arm, "regret_ratio": 0.0} for name in (OFF, CLAIRVOYANT)}
    arms[OURS] = {**arm, "regret_ratio": regret_ratio, "back_s": list(back_s)}
    arms[BEST_STATIC] = {**arm, "regret_ratio": static_ratio}
    return {"group": "closed loop", "load": "made", "requests": 4, "seed": 0, "arms": arms}


def test_the_closed_loop_comes_first_and_has_twenty_shapes() -> None:
    assert regret.USUAL[:3] == ("closed loop", "staircase", "all at once")
    assert len(closed_tasks("closed loop", OPTIONS)) == 20


def test_fewer_shapes_are_spread_over_the_group() -> None:
    names = [task.shape for task in regret._tasks(options(shapes=3))]
    every = [task.shape for task in closed_tasks("closed loop", OPTIONS)]
    assert names == [every[0], every[6], every[13]]


@pytest.mark.parametrize("group", HELD_OUT)
def test_held_out_loads_can_be_made_and_are_the_same_for_a_seed(group: str) -> None:
    tasks = held_out_tasks(group, OPTIONS)
    cases, again = [task.case() for task in tasks], [task.case() for task in tasks]
    assert len({case.name for case in cases}) == len(cases) >= 5
    assert [case.scenario for case in cases] == [case.scenario for case in again]
    assert all(case.seed >= 100 for case in cases), "no seed of the other groups"


def test_a_summary_has_mean_and_worst_and_the_seconds_back_by_requests() -> None:
    found = summary([cell(0.01, (0.0, 1.0)), cell(0.03, (3.0,))])["closed loop"]
    assert found[OURS]["regret_ratio"] == {"mean": 0.02, "worst": 0.03}
    assert found[OURS]["to_best_static"] == {"mean": 0.98, "worst": 0.97}
    assert found["seconds back from off, by requests"] == {
        "4": {"on_already": 1, "from_off": 2, "mean_s": 2.0, "worst_s": 3.0}
    }
    targets = {
        (one["measure"], one["of"]): one["met"] for one in regret._against_targets({"closed loop": found})
    }
    assert targets["regret_ratio", "mean"] is False
    assert targets["regret_ratio", "worst"] is True
    assert targets["to_best_static", "worst"] is True
    assert targets["back_s", "worst"] is False


def test_arms_ahead_of_the_clairvoyant_are_counted() -> None:
    found = summary([cell(0.01), cell(-0.002), cell(0.01, static_ratio=-0.005)])["closed loop"]
    assert found["ahead of the clairvoyant"] == {"cells": 2, "most_ratio": 0.005}


class ShortTask(Task):
    """A load of four seconds."""

    def case(self) -> Case:
        found = closed_tasks("all at once", OPTIONS)[2].case()
        return replace(found, load=replace(found.load, span_s=4.0), name="short")


def test_a_cell_has_every_arm_and_rivals_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regret_cells, "CACHE", tmp_path)
    task = ShortTask("all at once", 0, OPTIONS)
    first = regret_cells.run(task)
    assert len(list(tmp_path.iterdir())) == 1
    assert regret_cells.run(task) == first
    assert set(first["arms"]) == {OURS, BEST_STATIC, OFF, CLAIRVOYANT}
    assert (first["group"], first["requests"]) == ("all at once", 4)
    assert "all at once" in regret_cells.table(summary([first]))
    assert json.loads(regret._json({"seeds": [0], "cells": [first]}))["cells"] == [first]
