"""``specctl bench`` beside ``vllm bench serve`` driven by hand: same server, same prompts, same arms.

    python -m benchmarks.bench_by_hand --models FOLDER [--rounds N] [--output FILE]

One CPU server of the reference target with its EAGLE-3 head (``make reference-models``). By hand means: the
table is put, ``vllm bench serve`` runs, the next arm's table is put, and so on, in rounds, as the command
does it. Compared are output tokens per second, medians over the rounds, and the order of the arms.
``vllm bench serve`` reads prompts by pandas, which comes with ``vllm[bench]``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from specctl.bench.prompts import load_prompts
from testing.lossless import put_table
from testing.provenance import summary, write_report
from testing.servers import vllm_server

ARMS = {"off": 0, "always 1": 1, "always 4": 4}
CONCURRENCY, OUTPUT_TOKENS, REQUESTS = 4, 64, 48
_BIN = Path(sys.executable).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--prompts", default="copying")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if importlib.util.find_spec("pandas") is None:
        parser.error("vllm bench serve needs pandas: pip install pandas")
    target, head = given.models / "reference-target", given.models / "reference-eagle3"
    config = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 4, "specctl": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prompts = written(given.prompts, folder / "prompts.jsonl")
        with vllm_server(target, folder / "server.log", config) as server:
            ours = by_specctl(server.url, prompts, given.rounds)
            theirs = by_hand(server.url, target, prompts, given.rounds, folder)
    found = {"specctl bench": ours, "vllm bench serve": theirs}
    orders = {tool: sorted(arms, key=lambda arm: -arms[arm]["median"]) for tool, arms in found.items()}
    report = {
        "load": f"{given.prompts}, {CONCURRENCY} at once, {OUTPUT_TOKENS} tokens each",
        "tokens_per_s": found,
        "order": orders,
        "same order": len({tuple(order) for order in orders.values()}) == 1,
    }
    write_report(report, given.output)
    return 0 if report["same order"] else 1


def written(name: str, path: Path) -> Path:
    """Prompts of which none begins as another, in the form that both tools read."""
    texts = [one.prompt or (one.messages or ())[-1].content for one in load_prompts(name)]
    lines = [f"{number}. {texts[number % len(texts)]}" for number in range(REQUESTS)]
    path.write_text("".join(json.dumps({"prompt": line}) + "\n" for line in lines), encoding="utf-8")
    return path


def by_specctl(url: str, prompts: Path, rounds: int) -> dict[str, Any]:
    command = [
        str(_BIN / "specctl"),
        "bench",
        url,
        "--prompts",
        str(prompts),
        "--as-they-are",
        "--ignore-eos",
    ]
    command += ["--endpoint", "completions", "--concurrency", str(CONCURRENCY), "--requests", str(REQUESTS)]
    command += ["--rounds", str(rounds), "--output-tokens", str(OUTPUT_TOKENS), "--outputs", "0", "--json"]
    for tokens in ARMS.values():
        command += ["--arm", str(tokens) if tokens else "off"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    runs = json.loads(done.stdout)["runs"]
    return {arm: summary([run["tokens_per_s"] for run in runs if run["arm"] == arm]) for arm in ARMS}


def by_hand(url: str, target: Path, prompts: Path, rounds: int, folder: Path) -> dict[str, Any]:
    speeds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(rounds):
        for arm, tokens in ARMS.items():
            asyncio.run(_put(url, tokens))
            speeds[arm].append(_served(url, target, prompts, folder))
    return {arm: summary(found) for arm, found in speeds.items()}


async def _put(url: str, tokens: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await put_table(client, tokens)


def _served(url: str, target: Path, prompts: Path, folder: Path) -> float:
    """Output tokens per second, as vLLM's own benchmark says."""
    command = [str(_BIN / "vllm"), "bench", "serve", "--base-url", url, "--model", "model"]
    command += ["--tokenizer", str(target), "--dataset-name", "custom", "--dataset-path", str(prompts)]
    command += ["--custom-output-len", str(OUTPUT_TOKENS), "--skip-chat-template", "--disable-shuffle"]
    command += ["--num-prompts", str(REQUESTS), "--max-concurrency", str(CONCURRENCY), "--ignore-eos"]
    command += ["--temperature", "0", "--save-result", "--result-dir", str(folder)]
    subprocess.run([*command, "--result-filename", "served.json"], stdout=subprocess.DEVNULL, check=True)
    found: float = json.loads((folder / "served.json").read_text(encoding="utf-8"))["output_throughput"]
    return found


if __name__ == "__main__":
    sys.exit(main())
