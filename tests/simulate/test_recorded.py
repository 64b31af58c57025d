"""Logs of ``specctl record`` as traces: what is made of good ones, and of bad ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.engine import FakeEngine, Traffic
from fakes.load import EDGES, EngineClock, FakeLoad

from specctl.cli.main import main
from specctl.engine_api.client import EngineClient
from specctl.errors import SimulationInputError
from specctl.http_client import HttpClient
from specctl.record.recorder import Recorder
from specctl.record.writer import LogWriter
from specctl.simulate.recorded import load_recorded

PROMPT, OUTPUT = 40, 15
Line = dict[str, Any]


def header(utc: str = "2026-01-01T00:00:00.000Z") -> Line:
    return {
        "kind": "header",
        "format": "specctl telemetry log",
        "version": 1,
        "specctl_version": "0.1.0",
        "target": "http://s:1",
        "every_s": 1.0,
        "utc": utc,
    }


def cell(steps: int) -> Line:
    """A lone request with two drafts a step: half of the first are accepted, and four fifths of those'
    second."""
    return {
        "decode_batch_from": 1,
        "decode_batch_to": 1,
        "num_speculative_tokens": 2,
        "has_prefill": False,
        "steps": steps,
        "request_steps": steps,
        "emitted_tokens": steps + 9 * steps // 10,
        "verified_tokens": 3 * steps,
        "drafted_at": [steps, steps],
        "accepted_at": [5 * steps // 10, 4 * steps // 10],
        "context_tokens": 0,
        "prefill_tokens": 0,
        "step_s": 0.01 * steps,
        "step_s_squared": 0.0001 * steps,
        "verified_tokens_squared": 9.0 * steps,
        "step_s_by_verified_tokens": 0.03 * steps,
        "draft_s": 0.0,
        "verify_s": 0.0,
    }


def reading(time_s: float, started: int, *, boot: str = "a", uptime_s: float | None = None) -> Line:
    """So many requests have started, and all but two of them have finished; all are alike, of ten steps."""
    finished = max(started - 2, 0)
    return {
        "kind": "reading",
        "time_s": time_s,
        "telemetry": {
            "contract_version": 1,
            "boot_id": boot,
            "uptime_s": 100.0 + time_s if uptime_s is None else uptime_s,
            "table_version": 0,
            "table_state": "start",
            "num_speculative_tokens": 2,
            "running": 2,
            "waiting": 0,
            "decoding": 2,
            "kv_cache_used_ratio": 0.1,
            "cells": [cell(10 * started)],
        },
        "load": {
            "started_requests": started,
            "first_token_wait_s": 0.25 * started,
            "prompt_tokens": PROMPT * started,
            "finished_requests": finished,
            "finished_output_tokens": OUTPUT * finished,
            "running": 2,
        },
    }


def written(folder: Path, *lines: Line | str) -> Path:
    path = folder / "t.log"
    texts = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines]
    texts[:1] = [texts[0].replace('": ', '":').replace(', "', ',"')]
    path.write_text("".join(texts))
    return path


def good(seconds: int = 11, per_s: int = 10) -> list[Line]:
    return [header(), *(reading(float(t), per_s * t) for t in range(seconds))]


def test_windows_give_their_counts_times_and_lengths(tmp_path: Path) -> None:
    lines = [header(), reading(0.0, 0), reading(10.0, 100), reading(20.0, 100), reading(30.0, 400)]
    trace = load_recorded(written(tmp_path, *lines), seed=3).trace
    assert len(trace) == 400
    assert trace.arrival_s[0] == 0.0
    assert (np.diff(trace.arrival_s) >= 0).all()
    # The wait for the first token, 0.25 s, and the time of the first arrival shift every window.
    busy = np.histogram(trace.arrival_s, bins=[0, 10, 19, 30.5])[0]
    assert busy.tolist() == [100, 0, 300]
    assert set(trace.prompt_tokens) == {PROMPT}
    assert set(trace.output_tokens) == {OUTPUT}
    assert not trace.skipped
    assert not trace.notes or all("hole" in note for note in trace.notes)


def test_the_same_seed_gives_the_same_requests(tmp_path: Path) -> None:
    path = written(tmp_path, *good())
    first, again, other = (load_recorded(path, seed=seed).trace.arrival_s for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_lengths_are_spread_as_the_histogram_and_keep_the_windows_means(tmp_path: Path) -> None:
    lines = good()
    counts = [0] * (len(EDGES) + 1)
    counts[EDGES.index(10)], counts[EDGES.index(200)] = 50, 50
    for line in lines[1:]:
        line["load"]["output_lengths"] = {"upper_tokens": list(EDGES), "counts": counts}
    output = load_recorded(written(tmp_path, *lines), seed=0).trace.output_tokens
    assert output.mean() == pytest.approx(OUTPUT, rel=0.05)
    assert np.quantile(output, 0.25) < 3
    assert np.quantile(output, 0.75) > 18


def test_requests_finish_in_the_order_of_their_starts(tmp_path: Path) -> None:
    lines = [header(), *(reading(float(t), 10 * t) for t in range(3))]
    lines[2]["load"].update(finished_requests=5, finished_output_tokens=500)
    lines[3]["load"].update(finished_requests=10, finished_output_tokens=1000 + 500)
    output = load_recorded(written(tmp_path, *lines), seed=0).trace.output_tokens
    assert sorted(output.tolist()) == [100] * 5 + [150] * 10 + [200] * 5, "ten finish after the log's end"


def by_finish(seconds: int = 11, per_s: int = 10, first: int = PROMPT) -> list[Line]:
    """As SGLang counts prompts: when their requests finish. Those of the first 30 are ``first`` long."""
    lines = good(seconds, per_s)
    for line in lines[1:]:
        load = line["load"]
        finished = load["finished_requests"]
        del load["prompt_tokens"]
        load["finished_prompt_tokens"] = PROMPT * finished + (first - PROMPT) * min(finished, 30)
    return lines


def test_prompts_are_those_of_finished_requests_where_no_others_are_counted(tmp_path: Path) -> None:
    trace = load_recorded(written(tmp_path, *by_finish()), seed=0).trace
    assert len(trace) == 100
    assert set(trace.prompt_tokens) == {PROMPT}
    assert not trace.skipped
    trace = load_recorded(written(tmp_path, *by_finish(first=10)), seed=0).trace
    order = np.argsort(trace.arrival_s, kind="stable")
    lengths = trace.prompt_tokens[order]
    # Windows end between two kinds, and arrivals are drawn within them.
    assert lengths[:15].mean() == pytest.approx(10, abs=1)
    assert lengths[45:].mean() == pytest.approx(PROMPT, abs=1)
    # 98 finished; the last two get the mean.
    assert lengths.sum() == pytest.approx(30 * 10 + 68 * PROMPT + 2 * (30 * 10 + 68 * PROMPT) / 98, rel=0.02)


def test_a_log_goes_on_with_an_engine_that_counts_prompts_otherwise(tmp_path: Path) -> None:
    second = by_finish()
    second[0] = header("2026-01-01T00:00:20.000Z")
    for line in second[1:]:
        line["telemetry"] |= {"boot_id": "b", "uptime_s": line["time_s"]}
    trace = load_recorded(written(tmp_path, *good(), *second), seed=0).trace
    assert len(trace) == 200
    assert set(trace.prompt_tokens) == {PROMPT}
    assert trace.skipped == {"server restarted": 1}


def test_a_log_without_a_load_says_why(tmp_path: Path) -> None:
    why = "http://s:1: /metrics: HTTP 404 (SGLang tells its own with --enable-metrics only)"
    lines = [header(), *({**reading(float(t), 0), "load": None, "gaps": [why]} for t in range(3))]
    with pytest.raises(SimulationInputError) as caught:
        load_recorded(written(tmp_path, *lines), seed=0)
    assert "expected the load of a server, got none in 0 windows ({'no counts of requests': 2})" in str(
        caught.value
    )
    assert why in str(caught.value)


def test_requests_in_flight_are_counted_by_the_telemetry(tmp_path: Path) -> None:
    """SGLang's own gauge is of some steps ago: here it has not seen the two that run."""
    lines = [header(), *(reading(float(t), 10 * (t + 1)) for t in range(9))]
    for number, line in enumerate(lines[1:]):
        finished = 8 if not number else 10 * number
        tokens = 0 if not number else 1000
        line["load"] |= {"running": 0, "finished_requests": finished, "finished_output_tokens": tokens}
    trace = load_recorded(written(tmp_path, *lines), seed=0).trace
    # The two that ran at the start wrote the thousand tokens, and none that started later.
    assert trace.output_tokens.max() < 500


def test_the_acceptance_is_that_of_the_cells(tmp_path: Path) -> None:
    scenario = load_recorded(written(tmp_path, *good(91)), seed=0).scenario
    assert scenario is not None
    points = scenario.classes[0].points
    assert [round(point.from_s) for point in points] == [0, 30, 60]
    assert points[0].conditional_at == pytest.approx((0.5, 0.8))


def test_too_few_drafts_give_no_acceptance(tmp_path: Path) -> None:
    load = load_recorded(written(tmp_path, *good(2, per_s=4)), seed=0)
    assert load.scenario is None
    assert "expected 50 drafts within 30 s, got 40" in str(load.why_no_scenario)


def _changed(change: Callable[[list[Line]], object]) -> list[Line | str]:
    lines: list[Any] = list(good())
    change(lines)
    return lines


@pytest.mark.parametrize(
    ("change", "requests", "skipped"),
    [
        pytest.param(lambda x: x.append('{"kind": "rea'), 100, {"torn line": 1}, id="truncated last line"),
        pytest.param(lambda x: x.insert(5, x[4]), 100, {"repeated reading": 1}, id="duplicated reading"),
        pytest.param(
            lambda x: x.insert(5, {**x[4], "time_s": 3.5}), 100, {"repeated reading": 1}, id="late duplicate"
        ),
        pytest.param(
            lambda x: x.__setitem__(6, reading(5.0, 20)), 100, {"a counter fell": 1}, id="counters that fell"
        ),
        pytest.param(
            lambda x: x.__setitem__(slice(6, None), [reading(float(t), 10 * (t - 5)) for t in range(5, 11)]),
            80,
            {"a counter fell": 2},
            id="counters set back",
        ),
        pytest.param(
            lambda x: x.__setitem__(
                slice(6, None), [reading(float(t), 10 * (t - 5), boot="b", uptime_s=t) for t in range(5, 11)]
            ),
            90,
            {"server restarted": 1},
            id="restart",
        ),
        pytest.param(
            lambda x: x.__setitem__(6, {**x[6], "load": None}),
            80,
            {"no counts of requests": 2},
            id="no load",
        ),
        pytest.param(
            lambda x: x.insert(3, {"kind": "news", "time_s": 1.5}),
            100,
            {"line of an unknown kind": 1},
            id="unknown kind",
        ),
        pytest.param(
            lambda x: x.insert(3, {"kind": "unreachable", "time_s": 1.5, "reason": "x"}), 100, {}, id="away"
        ),
    ],
)
def test_what_is_skipped_is_counted(
    change: Callable[[list[Line]], object], requests: int, skipped: dict[str, int], tmp_path: Path
) -> None:
    trace = load_recorded(written(tmp_path, *_changed(change)), seed=0).trace
    assert len(trace) == requests
    assert trace.skipped == skipped


def test_a_recorders_clock_that_jumps_is_set_right_by_the_engines(tmp_path: Path) -> None:
    for jump_s in (3600.0, -3600.0):
        lines = good()
        for line in lines[6:]:
            line["time_s"] = max(line["time_s"] + jump_s, line["time_s"] / 100)
        trace = load_recorded(written(tmp_path, *lines), seed=0).trace
        assert len(trace) == 100
        assert trace.arrival_s[-1] < 10.5
        assert any("clock jumped" in note for note in trace.notes)


def test_a_hole_is_filled_evenly_and_noted(tmp_path: Path) -> None:
    lines = [header(), *(reading(float(t), 10 * t) for t in (0, 1, 2, 50, 51))]
    trace = load_recorded(written(tmp_path, *lines), seed=0).trace
    assert len(trace) == 510
    assert trace.notes == ("1 x hole in the log, its load spread evenly",)


def test_a_second_recording_goes_on_by_the_wall_clock(tmp_path: Path) -> None:
    second = [header("2026-01-01T00:00:20.000Z"), *(reading(t, 200 + int(10 * t)) for t in (0.0, 1.0))]
    for line in second[1:]:
        line["telemetry"]["uptime_s"] += 20.0
    path = written(tmp_path, *good(), '{"kind": "rea\n', *second)
    trace = load_recorded(path, seed=0).trace
    assert len(trace) == 210
    assert trace.skipped == {"torn line": 1}
    assert 20.0 < trace.arrival_s[-1] < 21.5


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([header()], "expected 1 to 5000000 requests that started while it was recorded, got 0 in 0 windows"),
        ([header(), reading(0.0, 5)], "got 0 in 0 windows"),
        ([header(), reading(0.0, 5), reading(1.0, 5)], "got 0 in 1 windows"),
        ([header(), reading(0.0, 0), reading(1.0, 2)], "expected a request that finished"),
        ([{**header(), "version": 2}], "t.log:1: version: expected 1, got 2"),
        ([{**header(), "utc": "now"}], "t.log:1: utc: expected ISO 8601 with a zone, got 'now'"),
        ([{**header(), "every_s": 0}], "t.log:1: every_s: Input should be greater than 0, got 0"),
        ([header(), "{\n", reading(0.0, 0)], "t.log:2: expected a JSON object, got a torn line"),
        ([header(), {**reading(0.0, 0), "time_s": -1}], "t.log:2: time_s: Input should be greater than or"),
        ([json.dumps(header())], "expected a telemetry log, got no whole line"),
    ],
)
def test_a_log_that_tells_nothing_or_is_wrong_is_refused(
    lines: list[Line | str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SimulationInputError) as caught:
        load_recorded(written(tmp_path, *lines), seed=0)
    assert words in str(caught.value)


def _recorded(path: Path) -> None:
    """40 seconds of a fake server with a request of 30 + 20 tokens every second."""

    async def run(engine: FakeEngine, load: FakeLoad) -> None:
        def one() -> None:
            load.start(30)
            load.finish(30, 20)

        clock = EngineClock(engine, dict.fromkeys(range(1, 60), one))
        async with EngineClient(HttpClient(engine.url, timeout_s=5.0)) as client:
            recorder = Recorder(client, clock, every_s=1.0)
            await recorder.reach()
            with LogWriter(path, max_bytes=1 << 20) as writer:
                await recorder.run(writer, asyncio.Event(), for_s=39.5)

    traffic = Traffic(accept_at=(0.8,) * 8)
    with FakeEngine(start_tokens=4, traffic=traffic, has_shadow=False) as engine:
        load = FakeLoad()
        engine.more_metrics = load.text
        asyncio.run(run(engine, load))


def test_simulate_takes_what_record_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "log", tmp_path / "out.json"
    _recorded(log)
    arguments = ["simulate", "--trace", str(log), "--engine-profile", "h200-llama8b-vllm032"]
    assert main([*arguments, "--policy", "off", "--speed", "2", "--json", str(out)]) == 0
    assert "39 requests over" in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert written["inputs"]["acceptance"]["name"] == "recorded"
    law = written["inputs"]["acceptance"]["classes"][0]["points"][0]["conditional_at"]
    assert law[0] == pytest.approx(0.8, abs=0.06)
    assert {arm["emitted_tokens"] for arm in written["arms"]} == {39 * 20}
    assert main([*arguments, "--policy", "off", "--acceptance", "steady", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["inputs"]["acceptance"]["name"] == "steady"


def test_simulate_says_what_is_wrong_with_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "log"
    empty.write_text("")
    arguments = ["simulate", "--trace", str(empty), "--engine-profile", "h200-llama8b-vllm032"]
    assert main([*arguments, "--policy", "off"]) == 4
    assert "or a log of specctl record, got ''" in capsys.readouterr().err
    arguments[2] = str(written(tmp_path, *good(2, per_s=4)))
    assert main([*arguments, "--policy", "off"]) == 4
    assert "its acceptance is not known: expected 50 drafts" in capsys.readouterr().err
    assert main([*arguments, "--policy", "off", "--speed", "0"]) == 4
