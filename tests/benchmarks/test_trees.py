"""What the benchmark of trees makes of the runs of ``specctl bench``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.trees import OFF, OURS, arm_of, summary
from specctl.contract.setting import Setting


def run(arm: str, round_number: int, *timeline: float) -> Any:
    return SimpleNamespace(arm=arm, load="4 at once", round=round_number, timeline=timeline, tokens_per_s=0.0)


def test_arms_are_named_as_the_command_takes_them() -> None:
    tree = Setting(num_speculative_tokens=4, tree_topk=3, verify_width_tokens=8)
    settings = (Setting(num_speculative_tokens=0), Setting(num_speculative_tokens=2), tree)
    assert [arm_of(one) for one in settings] == ["off", "2", "4:3:8"]


def test_the_seconds_of_the_search_are_left_out_and_the_best_setting_is_that_of_the_medians() -> None:
    runs = []
    for number, tree in enumerate((12.0, 25.0, 12.0)):
        runs += [run(OFF, number, *[10.0] * 13), run("4:3:8", number, *[tree] * 13)]
        runs += [run("2", number, *[20.0] * 13), run(OURS, number, *[10.0] * 10, 19.8, 19.8, 3.0)]
    found = summary(SimpleNamespace(runs=runs, rounds=3, loads=[SimpleNamespace(title="4 at once")]))  # type: ignore[arg-type]
    settled = found["4 at once"]["after 10 s"]
    assert settled["best_static"] == "2"
    assert settled["to_best_static"] == {"median": 0.99, "least": 0.99, "most": 0.99}
    assert settled["to_off"]["median"] == pytest.approx(1.98)
    assert found["4 at once"]["whole"]["to_best_static"]["median"] < 0.6
