"""What load the demo puts on the server. No single number of drafts is best in all phases."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PHASES", "Phase"]

_PROMPTS = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True)
class Phase:
    name: str
    kinds: tuple[str, ...]
    concurrency: int
    max_tokens: int

    def prompts(self) -> list[str]:
        """Kinds take turns."""
        rows = [json.loads(line) for line in _PROMPTS.read_text(encoding="utf-8").splitlines()]
        by_kind = [[row["prompt"] for row in rows if row["kind"] == kind] for kind in self.kinds]
        longest = max(map(len, by_kind))
        return [prompts[i % len(prompts)] for i in range(longest) for prompts in by_kind]


# Chat answers are short: a model of this size soon repeats what it wrote, and is copying again.
PHASES = (
    Phase("1 request, copying", ("copying",), concurrency=1, max_tokens=96),
    Phase("8 requests, chat", ("high-entropy",), concurrency=8, max_tokens=24),
    Phase("4 requests, mixed", ("copying", "high-entropy"), concurrency=4, max_tokens=48),
)
