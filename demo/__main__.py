"""``make demo`` and ``make demo-sglang``: ``specctl bench`` on a real server: off, constants, autotune.

No constant is best in every phase: a single copying request gains from many drafts, eight chats lose by them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path

from testing.bench import specctl_bench
from testing.servers import suffix_server

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("SPECCTL_CACHE", ROOT / ".cache"))
LOGS = ROOT / "demo-logs"
MOST = 8
ARMS = ("off", "3", str(MOST))
# Chat answers are short: a model of this size soon repeats what it wrote, and is copying again.
LOADS = (
    "copying concurrency=1 output=96",
    "chat concurrency=8 output=24",
    "copying+chat concurrency=4 output=48",
)


def main() -> int:
    """The exit code of ``specctl bench --fail-if-behind``, as 0 or 1."""
    options = _options()
    runs = options.rounds * (len(ARMS) + 1) * len(LOADS)
    say(
        f"about {runs * options.seconds / 60 + 2:.0f} minutes; starting {options.engine} (about a minute) ..."
    )
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir()
    started_s = time.monotonic()
    # Without a corpus one arm does not learn from the outputs of the arm before it.
    with suffix_server(options.engine, options.model, LOGS / "server.log", MOST) as server:
        say(f"the server is up after {time.monotonic() - started_s:.0f} s at {server.url}")
        code, _ = specctl_bench(_arguments(server.url, options), LOGS)
    page = ROOT / "demo-report.html"
    shutil.copy(LOGS / "bench.html", page)
    say(f"{page.name} has the charts; demo-logs/audit.jsonl says what the daemon did and why")
    return 1 if code else 0


def _arguments(url: str, options: argparse.Namespace) -> list[str]:
    words = [url, "--name", f"{options.engine} on this machine's CPU", "--fail-if-behind"]
    for arm in (*ARMS, f"autotune:{options.policy}" if options.policy else "autotune"):
        words += ["--arm", arm]
    for load in LOADS:
        words += ["--load", load]
    words += ["--endpoint", "completions", "--ignore-eos"]
    return [*words, "--seconds", str(options.seconds), "--rounds", str(options.rounds)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description=main.__doc__)
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of a phase; default: 12")
    parser.add_argument("--rounds", type=int, default=4, help="each arm runs so often; default: 4")
    parser.add_argument("--policy", help="of autotune; default: balanced")
    parser.add_argument("--model", type=Path, default=CACHE / "models" / "gemma3-270m")
    return parser.parse_args()


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
