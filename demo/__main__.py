"""``make demo`` and ``make demo-sglang``: start the server, run the arms, print the table, write the page."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
from tqdm import tqdm

from benchmarks.load import run_load
from benchmarks.server import Server, sglang_server, vllm_server
from demo.arms import Arm, run_arm
from demo.phases import PHASES
from demo.report import table_rows, text_table, write_page
from demo.watch import describe

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("SPECCTL_CACHE", ROOT / ".cache"))
LOGS = ROOT / "demo-logs"
NUM_SPECULATIVE_TOKENS = 8
# One arm must not learn from the outputs of the arm before it.
CONFIG = {
    "method": "specctl_suffix",
    "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
    "use_global": False,
}
PHASE_S = {"vllm": 25.0, "sglang": 15.0}
# The daemon goes on from the number that the server was started with.
ARMS = {"off": 0, "fixed": NUM_SPECULATIVE_TOKENS, "specctl": NUM_SPECULATIVE_TOKENS}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--engine", choices=tuple(PHASE_S), default="vllm")
    parser.add_argument("--seconds", type=float, help="length of a phase (default 25; with sglang 15)")
    parser.add_argument("--policy", default=str(ROOT / "policies" / "balanced.yaml"))
    parser.add_argument("--model", type=Path, default=CACHE / "models" / "gemma3-270m")
    arguments = parser.parse_args()
    arguments.seconds = arguments.seconds or PHASE_S[arguments.engine]
    total_s = len(ARMS) * len(PHASES) * arguments.seconds
    say(f"about {total_s / 60 + 2:.0f} minutes; starting {arguments.engine} (about a minute) ...")
    LOGS.mkdir(exist_ok=True)
    started_s = time.monotonic()
    with _server(arguments.engine, arguments.model) as server:
        print(
            f"demo: the server is up after {time.monotonic() - started_s:.0f} s at {server.url}", flush=True
        )
        arms = asyncio.run(_run(server, arguments.policy, arguments.seconds))
    _tell(arms)
    page = ROOT / "demo-report.html"
    write_page(page, arms, _about(arguments))
    say(f"{page.name} has the chart; demo-logs/audit.jsonl says what the daemon did and why")
    say(f"done after {time.monotonic() - started_s:.0f} s")
    return 0


def _server(engine: str, model: Path) -> AbstractContextManager[Server]:
    log = LOGS / "server.log"
    if engine == "vllm":
        return vllm_server(model, log, CONFIG)
    options = {"suffix": {"use_global": False}}
    return sglang_server(
        model,
        log,
        "SPECCTL_SUFFIX",
        ["--speculative-num-draft-tokens", str(NUM_SPECULATIVE_TOKENS + 1)],
        {"SPECCTL_SGLANG_OPTIONS": json.dumps(options)},
    )


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


async def _run(server: Server, policy: str, seconds: float) -> list[Arm]:
    (LOGS / "audit.jsonl").unlink(missing_ok=True)
    # The first request of a server takes longer, and should be no arm's.
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        await run_load(client, server.model, PHASES[0].prompts()[:1], concurrency=1, max_tokens=8)
    arms = []
    with tqdm(total=len(ARMS) * len(PHASES), unit="phase", bar_format="{desc:40} {bar} {n}/{total}") as bar:
        first = True

        def advance(text: str) -> None:
            nonlocal first
            bar.update(0 if first else 1)
            first = False
            bar.set_description_str(text)

        for name, drafted in ARMS.items():
            arm = await run_arm(
                name,
                server,
                drafted=drafted,
                policy=policy if name == "specctl" else None,
                seconds=seconds,
                folder=LOGS,
                advance=advance,
            )
            arms.append(arm)
        bar.update(1)
    return arms


def _tell(arms: list[Arm]) -> None:
    print()
    print(text_table(table_rows(arms)))
    last = arms[-1]
    print(
        "\nTables on the running server while specctl steered it (requests decoding: tokens drafted at most, "
        "and from which chance to be right on):"
    )
    for when_s, table in last.watch.tables:
        print(f"  {when_s - last.started_s:6.1f} s  {describe(table)}")


def _about(arguments: argparse.Namespace) -> str:
    return (
        f"A real {arguments.engine} server on this machine's CPU with {arguments.model.name} in float32 and "
        f"method specctl_suffix. The same load ran three times, {arguments.seconds:g} s a phase: without "
        f"drafts (off), with {NUM_SPECULATIVE_TOKENS} drafted tokens for every request (fixed), and with "
        f"specctl autotune beside the server (policy {Path(arguments.policy).stem})."
    )


if __name__ == "__main__":
    raise SystemExit(main())
