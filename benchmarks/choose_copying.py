"""Choose the copying-heavy prompts of the benchmark, and list them by id.

    python -m benchmarks.choose_copying --target http://127.0.0.1:8000 --model NAME

The rule: prompts of swe, json_mode and agentic_steps of at most 1,000 tokens, in the order of the files. Kept
are those whose greedy continuation of 64 tokens repeats itself or the prompt: at least 60 % of its 5-grams
occurred before. The text decides, not a proposer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import httpx

from benchmarks.lossless import SHARED, generate

LIST = Path(__file__).with_name("copying_prompts.json")
KINDS = ("json_mode", "swe", "agentic_steps")
PROMPT_MAX_TOKENS = 1000
OUTPUT_TOKENS = 64
NGRAM = 5
SHARE_MIN = 0.6


def load_prompts(ids: Sequence[str]) -> list[str]:
    """Texts of listed prompts, in the order of the list."""
    texts = {row["id"]: row["prompt"] for kind in KINDS for row in rows_of(kind)}
    return [texts[i] for i in ids]


def listed() -> list[str]:
    ids: list[str] = json.loads(LIST.read_text(encoding="utf-8"))["ids"]
    return ids


def rows_of(kind: str) -> list[dict[str, str]]:
    path = SHARED / "data" / "prompts" / f"{kind}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def repeated_share(prompt: Sequence[int], output: Sequence[int]) -> float:
    """Share of the output's n-grams that occurred before, in the prompt or in the output."""
    tokens = [*prompt, *output]
    ends = range(len(prompt) + NGRAM, len(tokens) + 1)
    seen = {tuple(tokens[i : i + NGRAM]) for i in range(max(len(prompt) - NGRAM + 1, 0))}
    repeated = 0
    for end in ends:
        gram = tuple(tokens[end - NGRAM : end])
        repeated += gram in seen
        seen.add(gram)
    return repeated / max(len(ends), 1)


async def choose(target: str, model: str, per_kind: int, scan_max: int) -> list[str]:
    chosen: list[str] = []
    async with httpx.AsyncClient(base_url=target, timeout=600) as client:
        for kind in KINDS:
            kept = 0
            for row in rows_of(kind)[:scan_max]:
                if len(row["prompt"]) > 6 * PROMPT_MAX_TOKENS or kept == per_kind:
                    continue
                answer = await client.post("/tokenize", json={"model": model, "prompt": row["prompt"]})
                tokens = answer.json()["tokens"]
                if len(tokens) > PROMPT_MAX_TOKENS:
                    continue
                output = (await generate(client, model, [row["prompt"]], OUTPUT_TOKENS, 1))[0]
                share = repeated_share(tokens, output)
                print(f"{row['id']}: {len(tokens)} tokens, {share:.0%} repeated", flush=True)
                if len(output) == OUTPUT_TOKENS and share >= SHARE_MIN:
                    chosen.append(row["id"])
                    kept += 1
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--per-kind", type=int, default=4)
    parser.add_argument("--scan-max", type=int, default=60, help="rows of a kind to look at")
    arguments = parser.parse_args()
    ids = asyncio.run(choose(arguments.target, arguments.model, arguments.per_kind, arguments.scan_max))
    rule = (
        f"{', '.join(KINDS)}; at most {PROMPT_MAX_TOKENS} tokens; at least {SHARE_MIN:.0%} of the "
        f"{NGRAM}-grams of the greedy continuation ({OUTPUT_TOKENS} tokens) occurred before"
    )
    LIST.write_text(json.dumps({"rule": rule, "ids": ids}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
