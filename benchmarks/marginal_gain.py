"""What drafts are worth that are chosen by their chances: half of the requests copy, half do not.

    python -m benchmarks.marginal_gain vllm|sglang --copying FILE --talk FILE [--rounds N] [--output FILE]

The reference target (SPECCTL_SHARED) with specctl_suffix on a CPU, each request from its own text alone, so
that all arms can have the same prompts: tables in turn, so many drafts, and 8 with a least chance. Then
``specctl autotune`` with a goodput policy that chooses by chances and with one that does not, in turn, each a
fresh daemon. Greedy; the first round warms up and is not told. Files as benchmarks.gpu.prompts writes them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.autotune import autotune
from benchmarks.lossless import SHARED
from benchmarks.provenance import pairwise_ratios, provenance, summary
from benchmarks.server import Server, sglang_server, vllm_server

_MODEL = SHARED / "models" / "reference-target"
_DRAFTS = 8
_AT_ONCE = 8
_OUTPUT_TOKENS = 64
_PROMPT_TOKENS = 100
"""Of a text that is not to be copied."""
_REQUESTS = 32
_TABLES: dict[str, tuple[int, float | None]] = {
    "off": (0, None),
    "2": (2, None),
    "4": (4, None),
    "8": (8, None),
    "8, 0.05": (8, 0.05),
    "8, 0.1": (8, 0.1),
    "8, 0.2": (8, 0.2),
    "8, 0.4": (8, 0.4),
}
_POLICIES = {
    "plain": "kind: goodput\nmarginal_gain: false\n",
    "by chances": "kind: goodput\nmarginal_gain: true\n",
}
_SETTLE_S, _WATCHED_S = 15.0, 20.0
_SUFFIX = {"use_global": False}
_SHOWN = ("decode_batch_from", "num_speculative_tokens", "min_token_prob")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("--copying", type=Path, required=True)
    parser.add_argument("--talk", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    source = provenance()
    prompts = mixed(given.copying, given.talk)
    with tempfile.TemporaryDirectory() as name, _server(given.engine, Path(name)) as server:
        figures = asyncio.run(_measured(server.url, prompts, given.rounds, Path(name)))
    report = {"provenance": source, "at once": _AT_ONCE, "engine": given.engine, **figures}
    if given.output is not None:
        given.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def mixed(copying: Path, talk: Path) -> list[list[int]]:
    """In turn one to copy from and one that is not."""
    copied: list[list[int]] = json.loads(copying.read_text(encoding="utf-8"))
    texts: list[list[int]] = json.loads(talk.read_text(encoding="utf-8"))
    half = _REQUESTS // 2
    others = [text[:_PROMPT_TOKENS] for text in texts[:half]]
    return [prompt for pair in zip(copied[:half], others, strict=True) for prompt in pair]


@contextmanager
def _server(engine: str, folder: Path) -> Iterator[Server]:
    log = folder / "server.log"
    if engine == "vllm":
        config = {"method": "specctl_suffix", "num_speculative_tokens": _DRAFTS, **_SUFFIX}
        with vllm_server(_MODEL, log, config) as server:
            yield server
        return
    own = {"SPECCTL_SGLANG_OPTIONS": json.dumps({"suffix": _SUFFIX})}
    more = ["--speculative-num-draft-tokens", str(_DRAFTS + 1)]
    with sglang_server(_MODEL, log, "SPECCTL_SUFFIX", more, own) as server:
        yield server


async def _measured(url: str, prompts: list[list[int]], rounds: int, folder: Path) -> dict[str, Any]:
    tables: dict[str, list[dict[str, float]]] = {name: [] for name in _TABLES}
    daemons: dict[str, list[dict[str, float]]] = {name: [] for name in _POLICIES}
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        for number in range(rounds + 1):
            for name, (drafts, least) in _TABLES.items():
                await _put(client, drafts, least)
                told = await _turn(client, prompts)
                if number:
                    tables[name].append(told)
        for _ in range(rounds):
            for name, policy in _POLICIES.items():
                await _put(client, 0, None)
                file = folder / "policy.yaml"
                file.write_text(policy, encoding="utf-8")
                with autotune(url, folder, policy=str(file)):
                    await _turn(client, prompts, _SETTLE_S)
                    daemons[name].append(await _turn(client, prompts, _WATCHED_S))
                    rows = (await client.get("/specctl/v1/table")).json()["rows"]
                    print(name, [tuple(row[key] for key in _SHOWN) for row in rows], flush=True)
    return {"tables": _told(tables, "8"), "daemons": _told(daemons, "plain")}


async def _put(client: httpx.AsyncClient, drafts: int, least: float | None) -> None:
    """Waits for the lease of a daemon that has ended."""
    row = {"decode_batch_from": 1, "num_speculative_tokens": drafts, "min_token_prob": least}
    for _ in range(60):
        version = (await client.get("/specctl/v1/table")).json()["version"]
        change = {"base_version": version, "rows": [row], "fallback_num_speculative_tokens": 0}
        answer = await client.put("/specctl/v1/table", json={**change, "owner": "benchmark"})
        if answer.status_code != 409:
            break
        await asyncio.sleep(0.5)
    answer.raise_for_status()


async def _turn(
    client: httpx.AsyncClient, prompts: Sequence[list[int]], seconds: float | None = None
) -> dict[str, float]:
    """All prompts once, or over and over for that long."""
    before = await _counted(client)
    began_s = time.monotonic()
    queue = iter(prompts)
    done = 0

    async def worker() -> None:
        nonlocal queue, done
        while True:
            prompt = next(queue, None)
            if prompt is None:
                if seconds is None:
                    return
                queue = iter(prompts)
                continue
            if seconds is not None and time.monotonic() - began_s > seconds:
                return
            body = {"model": "model", "prompt": prompt, "max_tokens": _OUTPUT_TOKENS, "temperature": 0}
            answer = await client.post("/v1/completions", json={**body, "ignore_eos": True})
            answer.raise_for_status()
            done += 1

    await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
    took_s = time.monotonic() - began_s
    emitted, verified, steps = (
        after - one for after, one in zip(await _counted(client), before, strict=True)
    )
    return {
        "tokens/s": done * _OUTPUT_TOKENS / took_s,
        "tokens a request-step": emitted / steps,
        "verified tokens a request-step": verified / steps,
    }


async def _counted(client: httpx.AsyncClient) -> tuple[int, int, int]:
    cells = (await client.get("/specctl/v1/telemetry")).json()["cells"]
    return (
        sum(cell["emitted_tokens"] for cell in cells),
        sum(cell["verified_tokens"] for cell in cells),
        max(sum(cell["request_steps"] for cell in cells), 1),
    )


def _told(arms: dict[str, list[dict[str, float]]], base: str) -> dict[str, Any]:
    found = {}
    for name, turns in arms.items():
        row = {key: summary([turn[key] for turn in turns]) for key in turns[0]}
        rates = ([turn["tokens/s"] for turn in one] for one in (turns, arms[base]))
        row[f"tokens/s against {base}"] = summary(pairwise_ratios(*rates))
        found[name] = row
        print(name, {key: (one["median"], one["min"], one["max"]) for key, one in row.items()}, flush=True)
    return found


if __name__ == "__main__":
    main()
