"""Ctrl-C: the table is put back, and complete rounds are a result."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.streaming import StreamingServer

from specctl.bench.results import BenchResult

ROOT = Path(__file__).parents[2]


def interrupted(
    server: StreamingServer,
    folder: Path,
    *,
    after_rounds: int,
    signals: int = 1,
    again_s: float | None = None,
) -> tuple[int, str]:
    """(exit code, output). ``again_s``: so long after the last line comes one more signal."""
    command = [sys.executable, "-m", "specctl.cli.main", "bench", server.url, "--save", str(folder)]
    command += ["--arm", "off", "--arm", "2", "--concurrency", "1", "--seconds", "0.5", "--rounds", "50"]
    process = subprocess.Popen(
        [*command, "--outputs", "0", "--output-tokens", "8"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )
    ends_s = time.monotonic() + 60
    wanted = 3 + 2 * after_rounds
    while len(server.engine.puts) < wanted:
        assert time.monotonic() < ends_s, "the benchmark does not begin"
        time.sleep(0.02)
    for _ in range(signals):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    lines = []
    if again_s is not None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("saved"):
                time.sleep(again_s)
                process.send_signal(signal.SIGINT)
                break
    output, _ = process.communicate(timeout=60)
    return process.returncode, "".join(lines) + output


@pytest.mark.parametrize(("after_rounds", "signals"), [(0, 1), (2, 2)])
def test_ctrl_c_puts_the_table_back(tmp_path: Path, after_rounds: int, signals: int) -> None:
    with StreamingServer() as server:
        before = server.engine.rows
        code, output = interrupted(server, tmp_path, after_rounds=after_rounds, signals=signals)
        assert server.engine.rows == before
        assert server.engine.live.read().lease_remaining_s is None
    assert code == 130, output
    assert "Traceback" not in output
    saved = tmp_path / "bench.json"
    assert saved.exists() == (after_rounds > 0)
    if after_rounds:
        result = BenchResult.model_validate_json(saved.read_text())
        assert result.is_cut_short
        assert result.rounds >= 1
        assert {run.round for run in result.runs} == set(range(result.rounds))


@pytest.mark.parametrize("again_s", [0.0, 0.03])
def test_ctrl_c_while_the_process_ends(tmp_path: Path, again_s: float) -> None:
    with StreamingServer() as server:
        code, output = interrupted(server, tmp_path, after_rounds=1, again_s=again_s)
    assert code == 130, output
    assert "Traceback" not in output
    assert "saved:" in output
