"""Run commands side by side: each one's output when it has ended, and a failure's exit code at the end.

python tools/lanes.py NAME=COMMAND [NAME=COMMAND ...]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path


def ran(name: str, command: str, folder: Path) -> tuple[str, int, float, str]:
    """Name, exit code, seconds and output of a lane."""
    started_s = time.monotonic()
    log = folder / name
    with log.open("wb") as output:
        code = subprocess.run(command, shell=True, stdout=output, stderr=subprocess.STDOUT).returncode
    return name, code, time.monotonic() - started_s, log.read_text(encoding="utf-8", errors="replace")


def main(arguments: list[str]) -> int:
    lanes = dict(argument.split("=", 1) for argument in arguments)
    codes = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(lanes)) as pool:
        running = [pool.submit(ran, name, command, Path(folder)) for name, command in lanes.items()]
        for done in as_completed(running):
            name, code, seconds, output = done.result()
            codes.append(code)
            word = "ended" if code == 0 else f"FAILED with exit code {code}"
            print(f"==== {name}\n{output}==== {name}: {word} after {seconds:.0f} s", flush=True)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
