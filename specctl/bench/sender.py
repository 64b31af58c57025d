"""One streamed request to an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import pydantic_core
from yarl import URL

from specctl.bench.prompts import Prompt
from specctl.bench.records import RequestRecord, StreamBytes, read_stream
from specctl.bench.stream_pool import StreamPool
from specctl.errors import BenchFailed
from specctl.http_client import normalise_target
from specctl.plain_text import plain_text

__all__ = ["Endpoint", "Live", "Sender", "Session"]

Endpoint = Literal["completions", "chat"]
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(slots=True)
class Live:
    """For the progress display: arrivals of output since the run began, and tokens of those that are counted:
    a request's tokens are when it ends."""

    arrivals: int = 0
    tokens: int = 0
    counted_arrivals: int = 0

    def arrived(self) -> None:
        self.arrivals += 1

    @property
    def tokens_so_far(self) -> float:
        ratio = self.tokens / self.counted_arrivals if self.counted_arrivals else 1.0
        return self.arrivals * ratio


class Session:
    """Connections of a benchmark; only connecting has a time limit. An asynchronous context manager."""

    def __init__(self, api_key: str | None) -> None:
        self._api_key = api_key
        self._pools: dict[str, StreamPool] = {}

    async def __aenter__(self) -> Session:
        self.http = aiohttp.ClientSession(
            headers={"authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for pool in self._pools.values():
            pool.close()
        await self.http.close()

    def pool(self, url: str) -> StreamPool:
        if url not in self._pools:
            self._pools[url] = StreamPool(url, self._api_key)
        return self._pools[url]


@dataclass
class Sender:
    """Requests to one server. ``sampling``: joins each body, and wins over what stands in it."""

    session: Session
    url: str
    model: str
    endpoint: Endpoint
    max_tokens: int
    sampling: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = False

    def body(self, prompt: Prompt, *, keep_ids: bool = False) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": prompt.output_tokens or self.max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if keep_ids:
            body["return_token_ids"] = True
        if self.endpoint == "completions":
            body["prompt"] = prompt.prompt if prompt.prompt is not None else _joined(prompt)
        elif prompt.messages is not None:
            body["messages"] = [message.model_dump() for message in prompt.messages]
        else:
            body["messages"] = [{"role": "user", "content": prompt.prompt}]
        return {**body, **self.sampling}

    async def send(
        self, prompt: Prompt, live: Live, record: RequestRecord, *, keep_text: bool = False
    ) -> None:
        """Fills the record. An error of the server or the connection stands in it; a cancelled request keeps
        what it had got."""
        stream = StreamBytes()
        raw = pydantic_core.to_json(self.body(prompt, keep_ids=keep_text))
        record.sent_s = time.monotonic()
        try:
            status = await self.session.pool(self.url).post(_PATHS[self.endpoint], raw, stream, live.arrived)
            record.ended_s = time.monotonic()
            if status != 200:
                text = b"".join(stream.pieces).decode("utf-8", "replace")
                record.error = f"HTTP {status}: {plain_text(text, 300)}"
                stream.pieces.clear()
        except (TimeoutError, OSError) as error:
            record.error = plain_text(f"{type(error).__name__}: {error}", 300)
        finally:
            if stream.pieces:
                read_stream(record, stream, keep_text=keep_text)
                live.tokens += record.output_tokens
                live.counted_arrivals += len(stream.pieces)

    async def post(self, path: str, body: Mapping[str, Any], timeout_s: float = 120.0) -> dict[str, Any]:
        """A request that is not streamed. Raises BenchFailed."""
        url = URL(normalise_target(self.url) + path)
        try:
            async with asyncio.timeout(timeout_s), self.session.http.post(url, json=dict(body)) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise BenchFailed(f"{self.url}{path}: HTTP {answer.status}: {plain_text(text, 300)}")
                found = pydantic_core.from_json(text)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise BenchFailed(
                f"{self.url}{path}: {type(error).__name__}: {plain_text(str(error))}"
            ) from error
        if not isinstance(found, dict):
            raise BenchFailed(f"{self.url}{path}: expected a JSON object")
        return found


def _joined(prompt: Prompt) -> str:
    """Messages as one text, for a model without a chat template."""
    assert prompt.messages is not None
    return "\n".join(f"{message.role}: {message.content}" for message in prompt.messages) + "\nassistant:"
