"""``specctl autotune`` beside a server, as a user starts it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_STOP_TIMEOUT_S = 15.0


@contextmanager
def autotune(
    url: str, folder: Path, *, policy: str = "balanced", more: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Stopped with SIGTERM. Writes audit.jsonl and autotune.log into the folder."""
    command = [str(Path(sys.executable).parent / "specctl"), "autotune", "--policy", policy]
    command += ["--target", url, "--audit-log", str(folder / "audit.jsonl"), "--metrics-port", "0", *more]
    with (folder / "autotune.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
