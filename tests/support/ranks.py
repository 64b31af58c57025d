"""Data-parallel ranks of one real server, each asked by its number."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import httpx
from support.engine_control import Control

__all__ = [
    "MANY_PROMPTS",
    "assert_same",
    "complete_on",
    "greedy_without_drafts",
    "grown",
    "put_table",
    "steps",
    "streams_while_changing",
]

MANY_PROMPTS = [
    *("The quick brown fox jumps over the lazy dog. The quick brown fox jumps", "# " + "-" * 40),
    *("def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return", "import os\nimport sys\nimport"),
    *("for i in range(10):\n    print(i)\n\nfor j in range(", "class Node:\n    def __init__(self, value):"),
    *("assertEqual(a, b)\n" * 4, '{"name": "x", "value": 1}\n{"name": "y", "value": 2}\n{"name":'),
]
Answer = tuple[int, list[int]]
"""A prompt's number and the tokens behind it."""


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


def streams_while_changing(
    ask: Callable[[int, int], list[int]],
    of_rank: Sequence[int],
    put_next: Iterable[None],
    seconds: float,
    every_s: float,
) -> list[Answer]:
    """Of eight streams of requests, of prompts by their number; ask: one of a rank. of_rank: where streams
    go, in turn. put_next: a table with every step of it."""
    ends = Event()

    def stream(first: int) -> list[Answer]:
        found, number = [], first
        while not ends.is_set():
            found.append((number, ask(number, of_rank[first % len(of_rank)])))
            number += 3
        return found

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(stream, first) for first in range(8)]
        started_s = time.monotonic()
        try:
            for _ in put_next:
                if time.monotonic() - started_s > seconds:
                    break
                time.sleep(every_s)
        finally:
            ends.set()
        return [pair for one in running for pair in one.result()]


def put_table(control: Control, change: int | list[dict[str, Any]]) -> None:
    """change: a number of drafts everywhere, or rows."""
    table = control.change(change) if isinstance(change, int) else control.change(0, rows=change)
    assert control.put(table).status_code == 200


def greedy_without_drafts(
    kept: dict[str, list[list[int]]], control: Control, ask: Callable[[int, int], list[int]]
) -> list[list[int]]:
    """Of MANY_PROMPTS. kept: by server, each of which is asked once."""
    if control.server.url not in kept:
        put_table(control, 0)
        kept[control.server.url] = [ask(number, 0) for number in range(len(MANY_PROMPTS))]
    return kept[control.server.url]


def assert_same(
    reference: Sequence[list[int]],
    answers: Sequence[Answer],
    scores: Callable[[int, list[int]], Mapping[int, float]],
    tie: float,
) -> None:
    """Of each prompt. scores: log probabilities of the likeliest tokens behind a prompt and these. Where two
    candidates lie nearer than ``tie``, the batch's shape may decide."""
    parted = [
        _margin(mine, reference[number % len(reference)], partial(scores, number % len(reference)))
        for number, mine in answers
        if mine != reference[number % len(reference)]
    ]
    print(len(answers), "answers; those that part, by their margins:", sorted(parted))
    assert all(one < tie for one in parted), parted
    assert len(parted) <= 1 + len(answers) // 16, parted


def _margin(mine: list[int], other: list[int], scores: Callable[[list[int]], Mapping[int, float]]) -> float:
    """By how much the server prefers one of the two tokens at which answers part."""
    at = next(at for at, pair in enumerate(zip(mine, other, strict=True)) if pair[0] != pair[1])
    found = scores(other[:at])
    values = [found.get(token, float("-inf")) for token in (mine[at], other[at])]
    return abs(values[0] - values[1]) if min(values) > float("-inf") else float("inf")
