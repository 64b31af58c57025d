"""What the benchmark of trees makes of its rounds."""

from __future__ import annotations

import pytest

from benchmarks.trees import OURS, summary


def test_the_best_setting_is_that_of_the_medians() -> None:
    rounds = [
        {"speeds": {"off": 10.0, "4 tokens": tree, "2 tokens": 20.0, OURS: 19.8}, "chosen": "2 tokens"}
        for tree in (12.0, 25.0, 12.0)
    ]
    found = summary(rounds)
    assert found["best_static"] == "2 tokens"
    assert found["to_best_static"] == {"median": 0.99, "least": 0.99, "most": 0.99}
    assert found["to_off"]["median"] == pytest.approx(1.98)
    assert found["the round's best setting, to the best of the medians"]["most"] == 1.25
    assert found["chosen by specctl"] == ["2 tokens"] * 3
