"""``specctl record``, ``profile`` and ``simulate`` on a real server, as a user has them follow each other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from support.engine_control import Control, wait_for

__all__ = ["recorded_and_simulated", "specctl"]

SPECCTL = str(Path(sys.executable).parent / "specctl")


def specctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SPECCTL, *arguments], capture_output=True, text=True, timeout=240)


def recorded_and_simulated(control: Control, folder: Path, lengths_s: Sequence[int]) -> tuple[Any, int]:
    """A log of the server while it is profiled, simulated on this profile: the profile, and the most requests
    that were sent for it. The table is left as it is.

    lengths_s: of a measurement, one after the other. Other programs run beside the tests: where the profile
    says "measure for longer", it is.
    """
    assert control.put(control.change(5, fallback_num_speculative_tokens=2)).status_code == 200
    log, made, out = folder / "log", folder / "p.yaml", folder / "out.json"
    command = [SPECCTL, "record", control.server.url, "--output", str(log), "--every", "0.5"]
    most = 0
    with subprocess.Popen(command) as recorder:
        wait_for(lambda: log.exists() and log.read_bytes().count(b"\n") >= 3, 60)
        for seconds in lengths_s:
            length = ["--for", str(seconds), "--requests", str(2 * seconds)]
            most += 2 * seconds
            measured = specctl("profile", control.server.url, *length, "--output", str(made))
            if "Measure for longer" not in measured.stderr:
                break
        recorder.send_signal(signal.SIGTERM)
        assert recorder.wait(20) == 0
    assert measured.returncode == 0, measured.stderr
    table = control.get("table")
    assert [row["num_speculative_tokens"] for row in table["rows"]] == [5]
    assert (table["fallback_num_speculative_tokens"], table["lease_s"]) == (2, None)
    arguments = ["simulate", "--trace", str(log), "--engine-profile", str(made), "--policy", "off"]
    simulated = specctl(*arguments, "--json", str(out))
    assert simulated.returncode == 0, simulated.stderr
    inputs = json.loads(out.read_text())["inputs"]
    assert 0 < inputs["requests"] <= most
    assert inputs["acceptance"]["name"] == "recorded"
    return yaml.safe_load(made.read_text()), most
