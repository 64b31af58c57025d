"""``specctl record``, ``profile`` and ``simulate`` on a real server, as a user has them follow each other."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from support.documented_commands import ADVICE, SPECCTL
from support.engine_control import Control, wait_for

__all__ = ["recorded_and_simulated", "specctl"]


def specctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SPECCTL, *arguments], capture_output=True, text=True, timeout=240)


def recorded_and_simulated(
    control: Control, folder: Path, measurements: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """The server's profile, on which the log of its measurement is simulated. The table is left as it is.

    measurements: seconds and most requests of the first, and of those that follow. Other programs run beside
    the tests: where the profile advises to measure for longer, it does.
    """
    assert control.put(control.change(5, fallback_num_speculative_tokens=2)).status_code == 200
    made, out = folder / "p.yaml", folder / "out.json"
    for seconds, requests in measurements:
        log = folder / f"log-{seconds}"
        command = [SPECCTL, "record", control.server.url, "--output", str(log), "--every", "0.5"]
        with subprocess.Popen(command) as recorder:
            wait_for(lambda log=log: log.exists() and log.read_bytes().count(b"\n") >= 3, 60)
            length = ["--for", str(seconds), "--requests", str(requests)]
            measured = specctl("profile", control.server.url, *length, "--output", str(made))
            recorder.send_signal(signal.SIGTERM)
            assert recorder.wait(20) == 0
        if ADVICE not in measured.stderr:
            break
    assert measured.returncode == 0, measured.stderr
    table = control.get("table")
    assert [row["num_speculative_tokens"] for row in table["rows"]] == [5]
    assert (table["fallback_num_speculative_tokens"], table["lease_s"]) == (2, None)
    arguments = ["simulate", "--trace", str(log), "--engine-profile", str(made), "--policy", "off"]
    simulated = specctl(*arguments, "--json", str(out))
    assert simulated.returncode == 0, simulated.stderr
    profile: dict[str, Any] = yaml.safe_load(made.read_text())
    inputs = json.loads(out.read_text())["inputs"]
    assert 0 < inputs["requests"] <= profile["measured"]["own_requests"] <= requests
    assert inputs["acceptance"]["name"] == "recorded"
    return profile
