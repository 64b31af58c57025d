"""Closed-loop load on a running server: so many requests at a time, tokens counted as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class LoadResult:
    """Times are seconds of time.monotonic."""

    started_s: float
    ended_s: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """(when, how many tokens) for every chunk of output."""
    requests: int = 0
    """Requests that ran to their end."""
    decode_s: float = 0.0
    """Seconds between first and last chunk, summed over finished requests."""
    decode_tokens: int = 0
    """Tokens after the first chunk, of finished requests."""
    outputs: dict[str, str] = field(default_factory=dict)
    """The last finished output of each prompt."""

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.arrivals)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / max(self.ended_s - self.started_s, 1e-9)

    @property
    def decode_tokens_per_s(self) -> float:
        """Of one request, its first token (and so the prefill) left out."""
        return self.decode_tokens / max(self.decode_s, 1e-9)


async def stream_tokens(
    client: httpx.AsyncClient, model: str, prompt: str, max_tokens: int, **more: Any
) -> AsyncIterator[tuple[int, str]]:
    """Number and text of the new tokens of each chunk of a greedy completion; ``more`` joins the request's
    body."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        **more,
    }
    seen = 0
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage, text = chunk.get("usage"), "".join(one["text"] for one in chunk["choices"])
            tokens = max(usage["completion_tokens"] - seen, 0) if usage else 0
            if tokens or text:
                yield tokens, text
                seen += tokens


async def run_load(
    client: httpx.AsyncClient,
    model: str,
    prompts: Iterable[str],
    *,
    concurrency: int,
    max_tokens: int,
    seconds: float | None = None,
    result: LoadResult | None = None,
    **more: Any,
) -> LoadResult:
    """Run for ``seconds``, or each prompt once where seconds is None.

    A sequence of prompts comes over and over while ``seconds`` last; an iterator is taken as it is.
    ``result`` may be watched while it grows.
    """
    result = result or LoadResult(time.monotonic())
    queue = (
        itertools.cycle(prompts) if seconds is not None and isinstance(prompts, Sequence) else iter(prompts)
    )

    async def worker() -> None:
        for prompt in queue:
            await _one(client, model, prompt, max_tokens, result, more)

    workers = asyncio.gather(*(worker() for _ in range(concurrency)))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(workers, seconds)
    result.ended_s = time.monotonic()
    return result


async def _one(
    client: httpx.AsyncClient,
    model: str,
    prompt: str,
    max_tokens: int,
    result: LoadResult,
    more: Mapping[str, Any],
) -> None:
    first_s, last_s, later_tokens, texts = 0.0, 0.0, 0, []
    async for tokens, text in stream_tokens(client, model, prompt, max_tokens, **more):
        last_s = time.monotonic()
        texts.append(text)
        result.arrivals.append((last_s, tokens))
        if first_s:
            later_tokens += tokens
        else:
            first_s = last_s
    result.requests += 1
    result.outputs[prompt] = "".join(texts)
    result.decode_s += last_s - first_s
    result.decode_tokens += later_tokens
