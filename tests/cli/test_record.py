"""``specctl record`` as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.engine import FakeEngine

from specctl.cli.main import main


def wait_for_lines(path: Path, count: int) -> None:
    ends_s = time.monotonic() + 30
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < ends_s, "timed out"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_it_ends_on_a_signal_and_keeps_every_line(number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with FakeEngine(start_tokens=2) as engine:
        command = [sys.executable, "-m", "specctl.cli.main", "record", engine.url]
        command += ["--output", str(path), "--every", "0.05"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as recorder:
            wait_for_lines(path, 5)
            recorder.send_signal(number)
            _, log = recorder.communicate(timeout=10)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert "Traceback" not in log
    if number is signal.SIGKILL:
        return
    assert recorder.returncode == 0
    assert lines[-1]["reason"] == "asked"
    assert "stopped" in log


def test_nothing_to_record_is_1_and_a_bad_place_is_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    assert main(["record", "http://127.0.0.1:1", "--output", str(path)]) == 1
    assert not path.exists()
    with FakeEngine() as engine:
        assert main(["record", engine.url, "--output", str(tmp_path / "none" / "log")]) == 4
        path.write_text("mine")
        assert main(["record", engine.url, "--output", str(path)]) == 4
    assert "got another file" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--every", "0"], ["--every", "x"], ["--for", "nan"], ["--max-bytes", "1"]])
def test_wrong_arguments_are_2(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["record", "http://127.0.0.1:1", "--output", "log", *more])
    assert ended.value.code == 2
    assert "expected" in capsys.readouterr().err
