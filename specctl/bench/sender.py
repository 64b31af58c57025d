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
from specctl.errors import BenchFailed
from specctl.http_client import normalise_target
from specctl.plain_text import plain_text

__all__ = ["Endpoint", "Live", "Sender", "open_session"]

Endpoint = Literal["completions", "chat"]
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
CONNECT_TIMEOUT_S = 30.0
ANSWER_MAX_BYTES = 1 << 20


@dataclass(slots=True)
class Live:
    """For the progress display: arrivals of output since the run began, and tokens of those that are counted:
    a request's tokens are when it ends."""

    arrivals: int = 0
    tokens: int = 0
    counted_arrivals: int = 0

    @property
    def tokens_so_far(self) -> float:
        ratio = self.tokens / self.counted_arrivals if self.counted_arrivals else 1.0
        return self.arrivals * ratio


def open_session(api_key: str | None) -> aiohttp.ClientSession:
    """As many connections as requests; only the connection has a time limit."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        headers={"authorization": f"Bearer {api_key}"} if api_key else {},
        skip_auto_headers={"user-agent", "accept", "accept-encoding"},
    )


@dataclass
class Sender:
    """Requests to one server. ``sampling``: joins each body, and wins over what stands in it."""

    session: aiohttp.ClientSession
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
        pieces, when_s = stream.pieces, stream.when_s
        raw = pydantic_core.to_json(self.body(prompt, keep_ids=keep_text))
        url = URL(normalise_target(self.url) + _PATHS[self.endpoint])
        headers = {"content-type": "application/json"}
        record.sent_s = time.monotonic()
        try:
            async with self.session.post(url, data=raw, headers=headers) as answer:
                if answer.status != 200:
                    text = (await answer.content.read(ANSWER_MAX_BYTES)).decode("utf-8", "replace")
                    record.error = f"HTTP {answer.status}: {plain_text(text, 300)}"
                    return
                content, now_s = answer.content, time.monotonic
                while piece := await content.readany():
                    when_s.append(now_s())
                    pieces.append(piece)
                    live.arrivals += 1
                record.ended_s = time.monotonic()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            record.error = plain_text(f"{type(error).__name__}: {error}", 300)
        finally:
            if pieces:
                read_stream(record, stream, keep_text=keep_text)
                live.tokens += record.output_tokens
                live.counted_arrivals += len(pieces)

    async def post(self, path: str, body: Mapping[str, Any], timeout_s: float = 120.0) -> dict[str, Any]:
        """A request that is not streamed. Raises BenchFailed."""
        url = URL(normalise_target(self.url) + path)
        try:
            async with asyncio.timeout(timeout_s), self.session.post(url, json=dict(body)) as answer:
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
