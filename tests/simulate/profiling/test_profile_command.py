"""``specctl profile`` from the command line, on a fake server whose time passes as ours does."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes.engine import Cost, FakeEngine, Traffic

from specctl.cli.main import main
from specctl.contract.table import TablePut, uniform_rows
from specctl.simulate.engine_profile import load_profile

NAMED = ["--fingerprint", "gpu=Fake 1", "--fingerprint", "dtype=float32", "--fingerprint", "parallelism=tp1"]
NAMED += ["--scheduler", "max_num_batched_tokens=2048", "--scheduler", "kv_tokens=65536"]
NAMED += ["--scheduler", "kv_block_tokens=16"]


@contextmanager
def running(engine: FakeEngine) -> Iterator[FakeEngine]:
    """Its time passes."""
    over = threading.Event()

    def go_on() -> None:
        before_s = time.monotonic()
        while not over.wait(0.02):
            now_s = time.monotonic()
            engine.advance(now_s - before_s)
            before_s = now_s

    with engine:
        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield engine
        finally:
            over.set()
            thread.join()


def quick(**more: object) -> FakeEngine:
    """Steps of 6 to 12 ms."""
    cost = Cost(constant_s=0.005, token_s=0.0002, noise_ratio=0.02)
    return FakeEngine(traffic=Traffic(decode_batch=4), cost=cost, start_tokens=3, **more)  # type: ignore[arg-type]


def test_a_profile_is_measured_written_and_taken_by_simulate(
    tmp_path: Path, trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.yaml"
    with running(quick()) as engine:
        assert (
            main(["profile", engine.url, *NAMED, "--for", "9", "--share", "0.5", "--output", str(path)]) == 0
        )
        assert engine.tokens_at(4) == 3
        assert engine.lease_s is None
    printed = capsys.readouterr().out
    assert "fake float32 on Fake 1 (tp1), vllm 0.32.0" in printed
    made = load_profile(path)
    assert made.scheduler.max_num_seqs == 8
    assert made.measured is not None
    assert made.measured.disturbed_s_ratio <= 0.55
    assert made.measured.miss_ratio < 0.1
    assert [other.name for other in tmp_path.iterdir() if other.suffix == ".part"] == []
    simulate = ["simulate", "--trace", str(trace_file), "--engine-profile", str(path), "--policy", "off"]
    assert main([*simulate, "--fingerprint", "gpu=Fake 1"]) == 0
    assert main([*simulate, "--fingerprint", "gpu=Other", "--fingerprint", "dtype=float16"]) == 4
    words = "gpu: expected Other, got Fake 1; dtype: expected float16, got float32"
    assert words in capsys.readouterr().err


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("timestamp_s,input_tokens,output_tokens\n0,10,10\n1,20,10\n")
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_puts_the_table_back(number: signal.Signals, tmp_path: Path) -> None:
    with running(quick()) as engine:
        command = [sys.executable, "-m", "specctl.cli.main", "profile", engine.url, *NAMED]
        command += ["--output", str(tmp_path / "p.yaml"), "--share", "0.5"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            ends_s = time.monotonic() + 30
            while engine.tokens_at(4) == 3 and time.monotonic() < ends_s:
                time.sleep(0.01)
            process.send_signal(number)
            _, log = process.communicate(timeout=20)
        assert engine.tokens_at(4) == 3
        assert engine.lease_s is None
    assert process.returncode == 4
    assert "interrupted: the table is as it was found, and no profile is written" in log
    assert "Traceback" not in log
    assert not list(tmp_path.iterdir())


def test_what_can_be_refused_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--output", str(tmp_path / "p.yaml")]
    with quick(has_plugin=False) as engine:
        assert main(["profile", engine.url, *NAMED, *output]) == 1
        assert "without the specctl plugin" in capsys.readouterr().err
    with quick() as engine:
        assert main(["profile", engine.url, *output]) == 4
        assert "does not report its gpu, dtype, parallelism" in capsys.readouterr().err
        assert main(["profile", engine.url, *NAMED[:6], *output]) == 4
        assert "name it with --scheduler max_num_batched_tokens=..." in capsys.readouterr().err
        assert main(["profile", engine.url, *NAMED, "--scheduler", "kv_tokens=x", *output]) == 4
        assert main(["profile", engine.url, *NAMED, "--output", str(tmp_path / "none" / "p.yaml")]) == 4
        change = TablePut(
            base_version=0,
            rows=uniform_rows(1),
            lease_s=60,
            fallback_num_speculative_tokens=0,
            owner="daemon",
        )
        engine.put(change.model_dump_json().encode())
        assert main(["profile", engine.url, *NAMED, *output]) == 1
        assert "leased by 'daemon'" in capsys.readouterr().err
        assert engine.owner == "daemon"


@pytest.mark.parametrize(
    "more",
    [
        ["--for", "300"],
        ["--share", "0.9"],
        ["--requests", "0"],
        ["--requests", "100000"],
        ["--fingerprint", "host=x"],
        ["--scheduler", "kv_tokens"],
    ],
)
def test_wrong_arguments_are_2(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profile", "http://127.0.0.1:1", *more])
    assert ended.value.code == 2
    assert "expected" in capsys.readouterr().err
