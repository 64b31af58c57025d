"""What a recorded log says: its load, simulated."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from fakes.engine import FakeEngine, Traffic
from fakes.load import EngineClock, FakeLoad

from specctl.cli.main import main
from specctl.engine_api.client import EngineClient
from specctl.http_client import HttpClient
from specctl.recommend.log import log_words
from specctl.record.recorder import Recorder
from specctl.record.writer import LogWriter

pytest.importorskip("numba")


def recorded(path: Path) -> None:
    """30 seconds of a server with a request of 30 + 20 tokens every second."""

    async def run(engine: FakeEngine, load: FakeLoad) -> None:
        def one() -> None:
            load.start(30)
            load.finish(30, 20)

        clock = EngineClock(engine, dict.fromkeys(range(1, 40), one))
        async with EngineClient(HttpClient(engine.url, timeout_s=30.0)) as client:
            recorder = Recorder(client, clock, every_s=1.0)
            await recorder.reach()
            with LogWriter(path, max_bytes=1 << 20) as writer:
                await recorder.run(writer, asyncio.Event(), for_s=29.5)

    with FakeEngine(start_tokens=4, traffic=Traffic(accept_at=(0.8,) * 8), has_shadow=False) as engine:
        load = FakeLoad()
        engine.more_metrics = load.text
        asyncio.run(run(engine, load))


def test_the_load_of_a_log_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    recorded(log)
    arguments = ["--log", str(log), "--engine-profile", "h200-llama8b-vllm032", "--engine", "vllm"]
    assert main(["recommend", "org/model", "--json", *arguments]) == 0
    simulated = json.loads(capsys.readouterr().out)["log"]
    arms = {arm["name"]: arm for arm in simulated["arms"]}
    assert simulated["requests"] == 29
    assert simulated["acceptance"] == "recorded"
    assert {"off", "specctl autotune", simulated["best_static"]} <= set(arms)
    assert arms["off"]["speedup_vs_off"] == 1.0
    assert arms["specctl autotune"]["tpot_p50_s"] < arms["off"]["tpot_p50_s"]
    assert len(log_words(simulated)) == 4


def test_a_log_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("")
    arguments = ["--log", str(tmp_path / "log"), "--engine-profile", "h200-llama8b-vllm032"]
    assert main(["recommend", "org/model", *arguments]) == 4
    assert "expected a telemetry log" in capsys.readouterr().err
