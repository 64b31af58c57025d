"""A bounded number of requests of our own, for a server without traffic."""

from __future__ import annotations

import asyncio
import itertools
import json
import random

from specctl.errors import TargetError
from specctl.http_client import HttpClient

__all__ = ["SyntheticLoad"]

OUTPUT_TOKENS = 64
# Words of a prompt, at most; a word is a few tokens.
WORDS_MAX = 200
TOKENS_A_WORD = 4
# Of the most words: the least that a long prompt has, and the least and the most that a short one has.
LONG_SHARE, SHORT_SHARES = 0.7, (0.05, 0.15)
_WORDS = ("river", "stone", "apple", "seven", "light", "garden", "paper", "cloud", "window", "music", "north")


class SyntheticLoad:
    """``at(level, is_long=...)`` keeps so many running, until ``total`` were sent; new ones' prompts are long
    or short.

    Prompts repeat themselves, so that methods which copy have something to draft, and each begins in its own
    way, so that none is served from a cache.
    """

    def __init__(self, client: HttpClient, model: str, *, total: int, context_max_tokens: int) -> None:
        self._client = client
        self._model = model
        self._left = total
        self._words = max(min(WORDS_MAX, (context_max_tokens - OUTPUT_TOKENS) // TOKENS_A_WORD), 1)
        self._rng = random.Random(0)
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent = 0

    @property
    def are_spent(self) -> bool:
        """Nothing is left to send, and nothing is running."""
        return not self._left and not self._tasks

    def at(self, level: int, *, is_long: bool) -> None:
        """Send as many as are missing. Raises TargetError where one failed."""
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()
        while self._left and len(self._tasks) < level:
            self._left -= 1
            self.sent += 1
            self._tasks.add(asyncio.create_task(self._send(is_long)))

    async def stop(self) -> None:
        """Closes their connections; the server then drops them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _send(self, is_long: bool) -> None:
        body = {
            "model": self._model,
            "prompt": self._prompt(is_long),
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            # As clients do: the server's work for each token is in its steps where it has few cores.
            "stream": True,
        }
        response = await self._client.post("/v1/completions", json.dumps(body).encode())
        if response.status != 200:
            words = response.body[:200].decode("utf-8", errors="replace")
            raise TargetError(f"{self._client.target}/v1/completions: HTTP {response.status}: {words}")

    def _prompt(self, is_long: bool) -> str:
        sentence = [str(next(self._numbers)), *self._rng.sample(_WORDS, 8)]
        shares = (LONG_SHARE, 1.0) if is_long else SHORT_SHARES
        length = max(round(self._words * self._rng.uniform(*shares)), 1)
        return " ".join(itertools.islice(itertools.cycle(sentence), length))
