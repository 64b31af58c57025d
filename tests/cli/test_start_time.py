"""A start takes less than a second of an idle core; here CPU seconds count, with as much again to spare."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from fakes.engine import FakeEngine

pytestmark = pytest.mark.alone

SECONDS = 2.0


def cpu_s(*arguments: str, engine: FakeEngine | None = None) -> float:
    """Until its end, or until an engine got its first table."""
    command = [sys.executable, "-m", "specctl.cli.main", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 25
        while engine is not None and not engine.puts and time.monotonic() < deadline:
            time.sleep(0.02)
        if engine is not None:
            process.send_signal(signal.SIGKILL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def test_help() -> None:
    assert cpu_s("autotune", "--help") < SECONDS


def test_the_first_decision() -> None:
    with FakeEngine(start_tokens=2) as engine:
        used_s = cpu_s(
            "autotune", "--policy", "balanced", "--target", engine.url, "--metrics-port", "0", engine=engine
        )
        assert engine.puts
    assert used_s < SECONDS
