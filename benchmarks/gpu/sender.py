"""Completions to a server from one process, hundreds at a time.

With aiohttp: httpx's pool looks through all connections for each request, and at 512 of them the sender was
seconds behind the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import aiohttp

__all__ = ["complete", "load", "session"]

_TIMEOUT_S = 600.0
_KEPT_ALIVE_S = 2.0
"""Shorter than the five seconds after which the server closes a connection without a request."""


@contextlib.asynccontextmanager
async def session(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_ALIVE_S),
        timeout=aiohttp.ClientTimeout(_TIMEOUT_S),
    ) as opened:
        yield opened


async def complete(opened: aiohttp.ClientSession, body: Mapping[str, Any]) -> None:
    """Raises aiohttp.ClientResponseError where the server refuses it."""
    async with opened.post("/v1/completions", json=body) as answer:
        answer.raise_for_status()
        await answer.read()


@contextlib.asynccontextmanager
async def load(url: str, bodies: Iterator[dict[str, Any]], concurrency: int) -> AsyncIterator[None]:
    """A closed loop: so many requests at a time while the block runs; what is under way is then dropped.

    The first answers are cut to evenly spaced lengths: requests that all begin and end together would
    alternate between prefill and decoding, and a short hold would see one of the two.
    """
    async with session(url) as opened:

        async def worker(number: int) -> None:
            body = next(bodies)
            body["max_tokens"] = max(1, body["max_tokens"] * (number + 1) // concurrency)
            while True:
                await complete(opened, body)
                body = next(bodies)

        workers = [asyncio.create_task(worker(number)) for number in range(concurrency)]
        try:
            yield
            for ended in (task for task in workers if task.done()):
                ended.result()
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
