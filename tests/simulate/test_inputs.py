"""Traces, profiles and scenarios: what is taken, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from specctl.errors import SimulationInputError
from specctl.policy.loader import shipped_policies
from specctl.simulate.engine_profile import EngineProfile, load_profile
from specctl.simulate.files import find_file
from specctl.simulate.scenario import BIN_S, Scenario, load_scenario
from specctl.simulate.step_seconds import step_seconds
from specctl.simulate.trace import Trace, load_trace

HEADER = "timestamp_s,input_tokens,output_tokens\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "t.csv:1: expected the header timestamp_s,input_tokens,output_tokens or"),
        ("a,b\n1,2\n", "got 'a,b'"),
        (HEADER, "expected at least one request, got none"),
        (HEADER + "0,5\n", "t.csv:2: expected 3 values, got 2"),
        (HEADER + "0,5,5,5\n", "t.csv:2: expected 3 values, got 4"),
        (HEADER + "0,5,5\n,5,5\n", "t.csv:3: timestamp_s: expected seconds from 0, got ''"),
        (HEADER + "nan,5,5\n", "expected seconds from 0, got 'nan'"),
        (HEADER + "inf,5,5\n", "got 'inf'"),
        (HEADER + "-1,5,5\n", "got '-1'"),
        (HEADER + "0,-5,5\n", "t.csv:2: input_tokens: expected a whole number from 0 to 100000000, got '-5'"),
        (HEADER + "0,5,1.5\n", "output_tokens: expected a whole number"),
        (HEADER + "0,,5\n", "input_tokens: expected a whole number"),
        (HEADER + "0,5,999999999999\n", "got '999999999999'"),
        (HEADER + "2,5,5\n1,5,5\n", "t.csv:3: timestamp_s: expected at least 2, the row before's, got 1"),
        (HEADER + "0,0,5\n", "got none ({'input_tokens is 0': 1})"),
    ],
)
def test_a_wrong_trace_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"t\.csv") as caught:
        load_trace(written(tmp_path, text))
    assert isinstance(caught.value, SimulationInputError)
    assert words in str(caught.value)


def test_a_trace_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimulationInputError, match="cannot be read"):
        load_trace(tmp_path / "none.csv")
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SimulationInputError, match="expected CSV in UTF-8"):
        load_trace(path)


def test_rows_of_no_length_are_skipped_and_counted_and_holes_too(tmp_path: Path) -> None:
    text = HEADER + "5,10,20\n6,0,20\n7,10,0\n8,0,0\n200,30,40\n"
    trace = load_trace(written(tmp_path, text))
    assert trace.arrival_s.tolist() == [0.0, 195.0]
    assert trace.prompt_tokens.tolist() == [10, 30]
    assert trace.skipped == {"input_tokens is 0": 2, "output_tokens is 0": 1}
    assert trace.gaps == 1


def test_both_headers_are_known(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,1,2\n"))
    assert len(trace) == 1


def test_stamps_of_a_coarse_clock_are_spread_and_others_are_not() -> None:
    ones = np.ones(9, np.int64)
    coarse = Trace(np.repeat([0.0, 3.0, 6.0], 3), ones, ones, {}).spread()
    fine = Trace(np.arange(9.0), ones, ones, {})
    assert coarse.arrival_s.tolist() == pytest.approx([0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert fine.spread() is fine


def test_speed_makes_arrivals_denser_and_must_be_a_number_over_0() -> None:
    ones = np.ones(2, np.int64)
    trace = Trace(np.array([0.0, 10.0]), ones, ones, {})
    assert trace.scaled(2.0).arrival_s.tolist() == [0.0, 5.0]
    for speed in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="speed: expected a number over 0"):
            trace.scaled(speed)


def test_a_trace_may_begin_later_at_0() -> None:
    trace = Trace(np.array([0.0, 4.0, 9.0]), np.array([1, 2, 3]), np.array([4, 5, 6]), {})
    later = trace.since(1)
    assert later.arrival_s.tolist() == [0.0, 5.0]
    assert (later.prompt_tokens.tolist(), later.output_tokens.tolist()) == ([2, 3], [5, 6])
    assert len(trace.since(3)) == 0


def test_requests_over_the_servers_length_are_left_out_and_counted() -> None:
    trace = Trace(np.arange(3.0), np.array([5, 50, 5]), np.array([5, 5, 6]), {})
    fitting = trace.that_fit(10)
    assert len(fitting) == 1
    assert fitting.skipped == {"over 10 tokens": 2}


def test_the_development_traces_load(shared_data: Path) -> None:
    for path in sorted((shared_data / "traces").glob("*.csv")):
        trace = load_trace(path).spread()
        assert len(trace) > 1000
        assert (np.diff(trace.arrival_s) >= 0).all()


@pytest.mark.parametrize("path", shipped_policies("scenarios"), ids=lambda path: path.stem)
def test_every_shipped_scenario_loads(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    grid = scenario.grid(8)
    assert grid.shape[1:] == (len(scenario.classes), 8)
    assert (grid >= 0).all()
    assert (grid <= 1).all()


@pytest.mark.parametrize("path", shipped_policies("profiles"), ids=lambda path: path.stem)
def test_every_shipped_profile_loads(path: Path) -> None:
    profile = load_profile(path)
    costs = profile.step_costs()
    seconds = [step_seconds(costs, batch, 3, 4, 4 * batch, 0, 0, 0) for batch in range(1, 257)]
    assert (np.diff(seconds) >= 0).all(), "more requests never take less time"


def test_a_line_is_drawn_between_points_and_a_step_is_not() -> None:
    points = [{"from_s": 0, "conditional_at": [0.0]}, {"from_s": 10, "conditional_at": [1.0, 0.5]}]
    fields: dict[str, Any] = {"name": "x", "classes": [{"name": "a", "share": 1, "points": points}]}
    line = Scenario.model_validate({**fields, "between": "line"}).grid(2)
    step = Scenario.model_validate({**fields, "between": "step"}).grid(2)
    half = int(5 / BIN_S)
    assert line[half, 0].tolist() == pytest.approx([0.5, 0.25])
    assert step[half, 0].tolist() == [0.0, 0.0]
    assert step[-1, 0].tolist() == [1.0, 0.5]


def _changed(profile: EngineProfile, path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump({**profile.model_dump(mode="json"), **changes}))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"forward": [{"tokens": 1, "seconds": 2}, {"tokens": 8, "seconds": 1}]}, "seconds that never fall"),
        ({"forward": [{"tokens": 1, "seconds": 1}]}, "forward: Tuple should have at least 2 items"),
        ({"graph_requests": [2, 1]}, "graph_requests: expected rising values, got [2, 1]"),
        ({"num_speculative_tokens_max": 64}, "expected at least max_num_seqs x (1 + "),
        ({"jitter_ratio": -0.1}, "jitter_ratio: Input should be greater than or equal to 0, got -0.1"),
        ({"unknown": 1}, "unknown: unknown key. Allowed here: context_token_s"),
    ],
)
def test_a_wrong_profile_is_refused(
    changes: dict[str, Any], words: str, h200: EngineProfile, tmp_path: Path
) -> None:
    with pytest.raises(SimulationInputError) as caught:
        load_profile(_changed(h200, tmp_path / "p.yaml", **changes))
    assert words in str(caught.value)


def test_a_profile_of_another_machine_is_refused(h200: EngineProfile) -> None:
    h200.refuse_unless({"gpu": "NVIDIA H200", "dtype": "bfloat16"})
    with pytest.raises(SimulationInputError, match="gpu: expected NVIDIA L4, got NVIDIA H200"):
        h200.refuse_unless({"gpu": "NVIDIA L4"})
    with pytest.raises(SimulationInputError, match=r"expected one of gpu, model, engine, .*, got host"):
        h200.refuse_unless({"host": "x"})


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ([], "classes: Tuple should have at least 1 item"),
        ([("a", 0.5, [0])], "shares that add up to 1, got 0.5"),
        ([("a", 1.0, [5])], "from_s rising from 0, got [5.0]"),
        ([("a", 1.0, [0, 3, 3])], "from_s rising from 0"),
    ],
)
def test_a_wrong_scenario_is_refused(classes: list[Any], words: str, tmp_path: Path) -> None:
    fields = {
        "name": "x",
        "classes": [
            {"name": n, "share": s, "points": [{"from_s": t, "conditional_at": [0.5]} for t in times]}
            for n, s, times in classes
        ],
    }
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(fields))
    with pytest.raises(SimulationInputError) as caught:
        load_scenario(path)
    assert words in str(caught.value)


def test_files_that_are_no_yaml_and_names_that_are_not_known_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("a: [")
    with pytest.raises(SimulationInputError, match=r"s\.yaml:1: not YAML"):
        load_scenario(path)
    with pytest.raises(
        SimulationInputError, match=r"shipped scenarios \(alternating-mix, drifting, phase-changing, steady\)"
    ):
        find_file("nothing", "scenarios")
    assert find_file("steady", "scenarios").name == "steady.yaml"
