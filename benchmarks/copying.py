"""Copying-heavy prompts of the benchmarks, by id, and how much of a text is copied.

Listed are prompts of at most 1,000 tokens whose greedy continuation of 64 tokens repeats itself or the
prompt: at least 60 % of its 5-grams occurred before. The text decided, not a proposer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from testing.lossless import SHARED

LIST = Path(__file__).with_name("copying_prompts.json")
KINDS = ("json_mode", "swe", "agentic_steps")
NGRAM = 5


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
