"""What ends up in a log: lines of one recording of a fake server that speaks the real protocol."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import FakeEngine
from fakes.load import EngineClock, FakeLoad

from specctl.engine_api.client import EngineClient
from specctl.errors import ContractError, SimulationInputError, SpecctlError, TargetError
from specctl.http_client import HttpClient
from specctl.record.lines import End
from specctl.record.reader import read_lines
from specctl.record.recorder import Recorder
from specctl.record.writer import LogWriter
from specctl.simulate.recorded import load_recorded
from specctl.simulate.recorded_windows import Recorded, windows_of

MANY_BYTES = 1 << 20


def recorded(
    engine: FakeEngine,
    path: Path,
    *,
    looks: int = 5,
    events: Mapping[int, Callable[[], object]] | None = None,
    max_bytes: int = MANY_BYTES,
) -> list[dict[str, Any]]:
    """The lines after so many looks, one a second; ``events`` happen before the look of that number."""

    async def run() -> None:
        clock = EngineClock(engine, events)
        async with EngineClient(HttpClient(engine.url, timeout_s=5.0)) as client:
            recorder = Recorder(client, clock, every_s=1.0)
            await recorder.reach()
            with LogWriter(path, max_bytes=max_bytes) as writer:
                await recorder.run(writer, asyncio.Event(), for_s=looks - 0.5)

    asyncio.run(run())
    return [json.loads(line) for line in path.read_text().splitlines()]


def kinds(lines: list[dict[str, Any]]) -> list[str]:
    return [line["kind"] for line in lines]


def test_a_recording_is_a_header_the_capabilities_the_readings_and_an_end(tmp_path: Path) -> None:
    with FakeEngine(start_tokens=4) as engine:
        lines = recorded(engine, tmp_path / "log")
    assert kinds(lines) == ["header", "capabilities", *["reading"] * 5, "end"]
    assert lines[0]["version"] == 1
    assert lines[1]["capabilities"]["boot_id"] == engine.boot_id
    assert [line["time_s"] for line in lines[2:7]] == [0.0, 1.0, 2.0, 3.0, 4.0]
    steps = [line["telemetry"]["cells"][0]["steps"] for line in lines[3:7]]
    assert steps == sorted(set(steps))
    assert lines[-1] == {"kind": "end", "time_s": 4.5, "reason": "time"}


def test_cells_are_written_when_they_changed(tmp_path: Path) -> None:
    with FakeEngine(start_tokens=4) as engine:

        def rest() -> None:
            engine.traffic = None

        lines = recorded(engine, tmp_path / "log", events={2: rest})
    cells = [len(line["telemetry"]["cells"]) for line in lines if line["kind"] == "reading"]
    assert cells == [0, 1, 1, 0, 0]


def test_the_load_is_recorded(tmp_path: Path) -> None:
    load = FakeLoad(wait_s=0.5)
    with FakeEngine() as engine:
        engine.more_metrics = load.text

        def come() -> None:
            load.start(30)
            load.finish(30, 7)

        lines = recorded(engine, tmp_path / "log", looks=2, events={1: come})
    before, after = (line["load"] for line in lines if line["kind"] == "reading")
    assert (before["started_requests"], after["started_requests"]) == (0, 1)
    assert (after["prompt_tokens"], after["first_token_wait_s"]) == (30, 0.5)
    assert (after["finished_requests"], after["finished_output_tokens"]) == (1, 7)
    lengths = after["output_lengths"]
    assert lengths["counts"][lengths["upper_tokens"].index(10.0)] == 1


def test_a_restart_is_recorded_with_the_new_capabilities_and_all_cells(tmp_path: Path) -> None:
    with FakeEngine(start_tokens=4) as engine:

        def restart() -> None:
            engine.restart()
            engine.advance(0.5)

        lines = recorded(engine, tmp_path / "log", events={2: restart})
    starts = [line for line in lines if line["kind"] == "capabilities"]
    first = starts[0]["capabilities"]["boot_id"]
    assert [line["restarted_from"] for line in starts] == [None, first]
    after = lines[lines.index(starts[1]) + 1]
    assert after["telemetry"]["boot_id"] == engine.boot_id != first
    assert after["telemetry"]["cells"]


@pytest.mark.parametrize("restarts", [True, False])
def test_moments_without_an_answer_are_recorded_once(tmp_path: Path, restarts: bool) -> None:
    with FakeEngine(start_tokens=4) as engine:

        def fall() -> None:
            engine.forced_status = dict.fromkeys(
                ("/specctl/v1/capabilities", "/specctl/v1/telemetry", "/metrics"), 503
            )

        def stand_up() -> None:
            engine.forced_status = {}
            if restarts:
                engine.restart()

        lines = recorded(engine, tmp_path / "log", looks=7, events={2: fall, 5: stand_up})
    want = ["header", "capabilities", "reading", "reading", "unreachable", "unreachable", "capabilities"]
    assert kinds(lines) == [*want, "reading", "reading", "end"]
    assert "HTTP 503" in lines[4]["reason"]
    first = lines[1]["capabilities"]["boot_id"]
    assert lines[6]["restarted_from"] == (first if restarts else None)


def test_broken_telemetry_is_a_gap_and_the_load_goes_on(tmp_path: Path) -> None:
    with FakeEngine() as engine:
        engine.mangle["/specctl/v1/telemetry"] = lambda body: body[:-5]
        lines = recorded(engine, tmp_path / "log", looks=2)
    reading = next(line for line in lines if line["kind"] == "reading")
    assert reading["telemetry"] is None
    assert reading["load"] is not None
    assert "telemetry" in reading["gaps"][0]


@pytest.mark.parametrize("route", ["/specctl/v1/telemetry", "/specctl/v1/capabilities", "/metrics"])
@pytest.mark.parametrize("body", [b"[" * 50_000, b'{"a":' * 50_000, b"9" * 5000, b"\xff"])
def test_what_cannot_be_read_is_a_line_of_the_log(tmp_path: Path, route: str, body: bytes) -> None:
    with FakeEngine() as engine:

        def break_it() -> None:
            engine.mangle[route] = lambda _: body
            engine.restart()

        lines = recorded(engine, tmp_path / "log", looks=3, events={1: break_it})
    assert lines[-1]["kind"] == "end"
    assert len(lines) > 4


@pytest.mark.parametrize("place", ["kind", "time_s", "telemetry", "load"])
@pytest.mark.parametrize("odd", [None, [], {}, [[]], "x", 10**30, 1e308, -1, True, "\x1b[2J", [0] * 70_000])
def test_any_line_is_read_or_refused_in_one_line(tmp_path: Path, place: str, odd: object) -> None:
    with FakeEngine(start_tokens=4) as engine:
        lines = recorded(engine, tmp_path / "log", looks=3)
    at = next(i for i, line in enumerate(lines) if line["kind"] == "reading") + 1
    lines[at][place] = odd
    (tmp_path / "log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ""
    try:
        windows_of(read_lines(tmp_path / "log", Counter()), Recorded())
    except SimulationInputError as error:
        words = str(error)
    assert words.isprintable()
    assert len(words) < 1000


def test_a_server_without_the_plugin_gives_its_load(tmp_path: Path) -> None:
    with FakeEngine(has_plugin=False) as engine:
        lines = recorded(engine, tmp_path / "log", looks=2)
    assert lines[1]["capabilities"] is None
    assert lines[2]["telemetry"] is None
    assert lines[2]["load"]["running"] == 1


def test_a_stock_sglang_gives_a_trace(tmp_path: Path) -> None:
    """Twelve requests come and go between the second look, before which none was counted, and the third."""
    page = (Path(__file__).parents[1] / "engine_api" / "sglang_0.5.21_metrics.txt").read_bytes()
    gauges = b"\n".join(line for line in page.splitlines() if b"_reqs" in line) + b"\n"
    with FakeEngine(has_plugin=False) as engine:
        engine.mangle["/metrics"] = lambda _: gauges

        def come() -> None:
            engine.mangle["/metrics"] = lambda _: page

        recorded(engine, tmp_path / "log", looks=4, events={2: come})
    load = load_recorded(tmp_path / "log", seed=0)
    assert (len(load.trace), load.trace.skipped) == (12, {})
    assert load.trace.prompt_tokens.sum() == pytest.approx(1806, rel=0.01)
    assert load.trace.output_tokens.sum() == pytest.approx(720, rel=0.01)
    assert load.scenario is None
    assert load.why_no_scenario == "the log holds no telemetry"


@pytest.mark.parametrize("error", ["not_ready", "not_steered", "not_loaded"])
def test_a_server_whose_plugin_steers_nothing_gives_its_load_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: str
) -> None:
    path, refusal = "/specctl/v1/capabilities", {"error": error, "message": "not started with an algorithm"}
    with FakeEngine() as engine:
        engine.forced_status[path] = 503
        engine.mangle[path] = lambda _: json.dumps(refusal).encode()
        lines = recorded(engine, tmp_path / "log", looks=2)
    assert lines[1]["capabilities"] is None
    assert lines[2]["load"]["running"] == 1
    words = [record.message for record in caplog.records if "not started with an algorithm" in record.message]
    assert len(words) == 1
    assert "the load is recorded, costs and acceptance are not" in words[0]


@pytest.mark.parametrize("has_plugin", [True, False])
def test_a_server_that_does_not_tell_its_load_is_refused(tmp_path: Path, has_plugin: bool) -> None:
    """SGLang without --enable-metrics; nobody could make a trace of its log."""
    with FakeEngine(has_plugin=has_plugin) as engine:
        engine.forced_status["/metrics"] = 404
        with pytest.raises(TargetError, match=r"HTTP 404 .*--enable-metrics"):
            recorded(engine, tmp_path / "log")
    assert not list(tmp_path.iterdir())


def test_the_log_ends_at_its_size(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with FakeEngine(start_tokens=4) as engine:
        lines = recorded(engine, path, looks=100, max_bytes=16_384)
    assert 12_000 < path.stat().st_size <= 16_384
    assert lines[-1]["reason"] == "size"


def test_what_cannot_be_read_is_refused_before_a_file_is_made(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with FakeEngine(token="secret") as engine, pytest.raises(ContractError, match="--token-file"):
        recorded(engine, path)
    with FakeEngine(has_plugin=False) as engine:
        engine.forced_status["/metrics"] = 404
        with pytest.raises(TargetError, match="404"):
            recorded(engine, path)
    assert not path.exists()


def test_an_existing_log_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with FakeEngine() as engine:
        recorded(engine, path, looks=2)
        torn = path.read_bytes()[:-10]
        path.write_bytes(torn)
        with LogWriter(path, max_bytes=MANY_BYTES) as writer:
            writer.write(End(time_s=1.0, reason="asked"))
    assert path.read_bytes().startswith(torn + b'\n{"kind":"end"')


def test_another_file_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine\n")
    with pytest.raises(SpecctlError, match="expected no file or a telemetry log"):
        LogWriter(path, max_bytes=MANY_BYTES)
    assert path.read_text() == "mine\n"
    with pytest.raises(SpecctlError, match="cannot be written"):
        LogWriter(tmp_path / "none" / "log", max_bytes=MANY_BYTES)


def test_a_full_disk_is_reported() -> None:
    with (
        LogWriter(Path("/dev/full"), max_bytes=MANY_BYTES) as writer,
        pytest.raises(SpecctlError, match="/dev/full: cannot be written: No space left"),
    ):
        writer.write(End(time_s=0.0, reason="asked"))
