"""``make demo`` and ``make demo-sglang``: a real server, three arms in rounds, a verdict and a page."""

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
from demo.arms import ArmRun, run_arm
from demo.page import write_page
from demo.phases import PHASES
from demo.result import OFF, OURS, Result
from demo.watch import describe

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("SPECCTL_CACHE", ROOT / ".cache"))
LOGS = ROOT / "demo-logs"
FIXED = 8
# One arm must not learn from the outputs of the arm before it.
CONFIG = {"method": "specctl_suffix", "num_speculative_tokens": FIXED, "use_global": False}
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
    with _server(options.engine, options.model) as server:
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


def _server(engine: str, model: Path) -> AbstractContextManager[Server]:
    log = LOGS / "server.log"
    if engine == "vllm":
        return vllm_server(model, log, CONFIG)
    return sglang_server(
        model,
        log,
        "SPECCTL_SUFFIX",
        ["--speculative-num-draft-tokens", str(FIXED + 1)],
        {"SPECCTL_SGLANG_OPTIONS": json.dumps({"suffix": {"use_global": False}})},
    )


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


async def _run(server: Server, options: argparse.Namespace) -> list[list[ArmRun]]:
    (LOGS / "audit.jsonl").unlink(missing_ok=True)
    # The first requests of a server take longer, and should be no arm's.
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        await run_load(client, server.model, PHASES[1].prompts()[:8], concurrency=8, max_tokens=8)
    rounds: list[list[ArmRun]] = []
    total = options.rounds * len(ARMS)
    with tqdm(total=total, unit="run", bar_format="{desc:60} {bar} {n}/{total} runs") as bar:
        for number in range(options.rounds):
            order = list(ARMS.items())
            # Every other round the other way about, so that no arm always comes first.
            runs = []
            for name, drafted in order if number % 2 == 0 else reversed(order):
                run = await run_arm(
                    name,
                    server,
                    drafted=drafted,
                    policy=options.policy if name == OURS else None,
                    seconds=options.seconds,
                    folder=LOGS,
                    live=bar.set_description_str,
                )
                runs.append(run)
                bar.update(1)
            rounds.append(runs)
    return rounds


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
