"""Data-parallel ranks of one real vLLM, each asked by its number."""

from collections import Counter
from collections.abc import Mapping

import httpx
from support.engine_control import Control

__all__ = ["complete_on", "grown", "steps"]


def complete_on(
    rank: int, control: Control, prompt: str, max_tokens: int, timeout_s: float = 300.0
) -> list[int]:
    """Over a connection of its own, as each of several at once needs one."""
    headers = {"X-data-parallel-rank": str(rank)}
    with httpx.Client(base_url=control.server.url, timeout=timeout_s, headers=headers) as client:
        return Control(control.server, client).complete(prompt, max_tokens)


def steps(control: Control) -> Counter[int]:
    """So far, by number of drafts."""
    found: Counter[int] = Counter()
    for cell in control.get("telemetry")["cells"]:
        found[cell["num_speculative_tokens"]] += cell["steps"]
    return found


def grown(after: Mapping[int, int], before: Mapping[int, int]) -> set[int]:
    """Numbers that ran in between."""
    return {number for number, count in after.items() if count > before.get(number, 0)}
