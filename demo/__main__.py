"""``make demo`` and ``make demo-sglang``: a real server, three arms in rounds, a verdict and a page."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path

import httpx
from tqdm import tqdm

from demo.arms import ArmRun, run_rounds
from demo.page import write_page
from demo.phases import PHASES
from demo.result import OFF, OURS, Result
from demo.watch import describe
from testing.load import run_load
from testing.servers import Server, suffix_server

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("SPECCTL_CACHE", ROOT / ".cache"))
LOGS = ROOT / "demo-logs"
FIXED = 8
# The daemon goes on from the number that the server was started with.
ARMS = {OFF: 0, f"always {FIXED}": FIXED, OURS: FIXED}
BUSY_LOAD_RATIO = 0.5


def main() -> int:
    """Exit code 1: specctl was behind the best constant by more than the noise."""
    options = _options()
    total_s = options.rounds * len(ARMS) * len(PHASES) * options.seconds
    busy = _busy_words()
    if busy:
        say(busy)
    say(f"about {total_s / 60 + 2:.0f} minutes; starting {options.engine} (about a minute) ...")
    LOGS.mkdir(exist_ok=True)
    started_s = time.monotonic()
    # Without a corpus one arm does not learn from the outputs of the arm before it.
    with suffix_server(options.engine, options.model, LOGS / "server.log", FIXED) as server:
        say(f"the server is up after {time.monotonic() - started_s:.0f} s at {server.url}")
        rounds = asyncio.run(_run(server, options))
    result = Result(rounds, tuple(ARMS))
    _print(result)
    page = ROOT / "demo-report.html"
    write_page(page, result, _about(options), busy)
    say(f"{page.name} has the charts; demo-logs/audit.jsonl says what the daemon did and why")
    return 1 if result.is_behind else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description=main.__doc__)
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a phase; default: 20")
    parser.add_argument("--rounds", type=int, default=2, help="each arm runs so often; default: 2")
    parser.add_argument("--policy", default=str(ROOT / "policies" / "balanced.yaml"))
    parser.add_argument("--model", type=Path, default=CACHE / "models" / "gemma3-270m")
    return parser.parse_args()


def _busy_words() -> str:
    """A warning where other work runs on this machine; empty where it does not."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    if load < BUSY_LOAD_RATIO * cores:
        return ""
    return f"other work runs on this machine (load {load:.1f} on {cores} cores): figures will scatter"


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


async def _run(server: Server, options: argparse.Namespace) -> list[list[ArmRun]]:
    (LOGS / "audit.jsonl").unlink(missing_ok=True)
    # The first requests of a server take longer, and should be no arm's.
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        await run_load(client, server.model, PHASES[1].prompts()[:8], concurrency=8, max_tokens=8)
    total = options.rounds * len(ARMS)
    with tqdm(total=total, unit="run", bar_format="{desc:60} {bar} {n}/{total} runs") as bar:
        return await run_rounds(
            ARMS,
            server,
            OURS,
            rounds=options.rounds,
            policy=options.policy,
            seconds=options.seconds,
            folder=LOGS,
            live=bar.set_description_str,
            ended=lambda run: bar.update(1),
        )


def _print(result: Result) -> None:
    rows = [("tokens/s, median (range)", *result.arms)]
    rows += [
        (phase.name, *(str(speeds[arm]) for arm in result.arms))
        for phase, speeds in zip(PHASES, result.by_phase, strict=True)
    ]
    rows.append(("mean of the phases", *(str(result.overall[arm]) for arm in result.arms)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    same, compared = result.outputs
    print(f"\noutputs identical: {same}/{compared}")
    ours = next(run for run in result.rounds[-1] if run.name == OURS)
    print("tables in the last round (drafted tokens by number of requests decoding):")
    for when_s, table in ours.watch.tables:
        print(f"  {when_s - ours.started_s:6.1f} s  {describe(table)}")
    print(f"\n{result.verdict}\n")


def _about(options: argparse.Namespace) -> str:
    return (
        f"A real {options.engine} server on this machine's CPU, {options.model.name} in float32, method "
        f"specctl_suffix. {options.rounds} rounds; in each round every arm ran the same three phases of "
        f"{options.seconds:g} s. specctl: a fresh `specctl autotune` (policy {Path(options.policy).stem}) "
        f"that starts from {FIXED} drafted tokens."
    )


if __name__ == "__main__":
    raise SystemExit(main())
