"""Is greedy output the same, token for token, while the table changes under the requests?

    python -m testing.lossless --target http://127.0.0.1:8000 --model NAME --prompts 200

The server must run in float32. Sums depend on the batch in every dtype, but in float32 that flips next to no
token. The reference is the same server with a table of 0 drafts.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from testing.provenance import ROOT, provenance

KINDS = ("json_mode", "humaneval", "gsm8k", "sql", "mt_bench")
PROMPT_MAX_CHARS = 1200
_CACHE = Path(os.environ.get("SPECCTL_CACHE", ROOT / ".cache"))
SHARED = Path(os.environ.get("SPECCTL_SHARED", _CACHE / "reference"))
"""The reference models, and data/prompts where it is a folder of one's own."""


@dataclass(frozen=True)
class Comparison:
    """What one pass at one concurrency gave."""

    concurrency: int
    prompts: int
    tokens: int
    differing: tuple[int, ...]
    """Indices of prompts whose output differs from the reference."""
    tables: int
    """How many tables were applied meanwhile."""


def choose_prompts(count: int, kinds: Sequence[str] = KINDS, folder: Path | None = None) -> list[str]:
    """``count`` prompts, the same number of each kind, the first ones that are short enough."""
    folder = folder or SHARED / "data" / "prompts"
    per_kind = -(-count // len(kinds))
    chosen: list[str] = []
    for kind in kinds:
        rows = map(json.loads, (folder / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines())
        short = (row["prompt"] for row in rows if len(row["prompt"]) <= PROMPT_MAX_CHARS)
        chosen += itertools.islice(short, per_kind)
    return chosen[:count] if len(chosen) >= count else chosen


async def put_table(
    client: httpx.AsyncClient,
    num_speculative_tokens: int,
    owner: str = "benchmark",
    tree_topk: int | None = None,
    verify_width_tokens: int | None = None,
) -> None:
    """One value for every decode batch. Raises httpx.HTTPStatusError where the server refuses it."""
    version = (await client.get("/specctl/v1/table")).json()["version"]
    row: dict[str, int | None] = {
        "decode_batch_from": 1,
        "num_speculative_tokens": num_speculative_tokens,
    }
    if tree_topk is not None:
        row |= {"tree_topk": tree_topk, "verify_width_tokens": verify_width_tokens}
    change = {
        "base_version": version,
        "rows": [row],
        "fallback_num_speculative_tokens": 0,
        "owner": owner,
    }
    (await client.put("/specctl/v1/table", json=change)).raise_for_status()


async def legal_values(client: httpx.AsyncClient) -> list[int]:
    answer = await client.get("/specctl/v1/capabilities")
    answer.raise_for_status()
    return list(answer.json()["num_speculative_tokens_legal"])


async def generate(
    client: httpx.AsyncClient, model: str, prompts: Sequence[str], max_tokens: int, concurrency: int
) -> list[list[int]]:
    """Greedy token ids for each prompt, at most ``concurrency`` requests at a time."""
    gate = asyncio.Semaphore(concurrency)

    async def one(prompt: str) -> list[int]:
        async with gate:
            body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": max_tokens}
            answer = await client.post(
                "/v1/completions", json={**body, "temperature": 0, "return_token_ids": True}
            )
            answer.raise_for_status()
            ids: list[int] = answer.json()["choices"][0]["token_ids"]
            return ids

    return list(await asyncio.gather(*map(one, prompts)))


async def compare(
    client: httpx.AsyncClient,
    model: str,
    prompts: Sequence[str],
    reference: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    concurrency: int,
    every_s: float = 0.5,
) -> Comparison:
    """Generate while the table changes each ``every_s`` seconds, again until every legal value went by.

    Raises httpx.HTTPStatusError where the server refuses a table.
    """
    values = await legal_values(client)
    tables = 0
    outputs: list[list[int]] = []

    async def keep_changing() -> None:
        nonlocal tables
        for value in itertools.cycle([*values, *reversed(values)]):
            await put_table(client, value)
            tables += 1
            await asyncio.sleep(every_s)

    changing = asyncio.create_task(keep_changing())
    try:
        while tables <= len(values):
            outputs += await generate(client, model, prompts, max_tokens, concurrency)
            if changing.done():
                changing.result()
    finally:
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
    expected = itertools.cycle(map(list, reference))
    differing = {i % len(prompts) for i, (a, b) in enumerate(zip(outputs, expected, strict=False)) if a != b}
    return Comparison(concurrency, len(prompts), sum(map(len, outputs)), tuple(sorted(differing)), tables)


async def run(arguments: argparse.Namespace) -> list[Comparison]:
    prompts = choose_prompts(arguments.prompts)
    results = []
    async with httpx.AsyncClient(base_url=arguments.target, timeout=600) as client:
        await put_table(client, 0)
        reference = await generate(client, arguments.model, prompts, arguments.max_tokens, 8)
        for concurrency in arguments.concurrency:
            result = await compare(
                client,
                arguments.model,
                prompts,
                reference,
                max_tokens=arguments.max_tokens,
                concurrency=concurrency,
            )
            print(result, flush=True)
            results.append(result)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--output", type=Path, help="also write the results and where they come from")
    arguments = parser.parse_args()
    results = asyncio.run(run(arguments))
    if arguments.output is not None:
        report = {"provenance": provenance(), "results": [asdict(result) for result in results]}
        arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if any(result.differing for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
