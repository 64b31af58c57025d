"""A server that streams completions over the OpenAI-compatible routes, at a speed that its table decides.

``with StreamingServer() as server: server.url``. Each request gets so many tokens a step as ``tokens_a_step``
says for the number of drafts in force; a step takes ``step_s`` of that number.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any, Self

from aiohttp import web
from fakes.engine import FakeEngine

__all__ = ["StreamingServer"]

PATHS = ("/specctl/v1/capabilities", "/specctl/v1/table", "/specctl/v1/telemetry", "/metrics")


class StreamingServer:
    def __init__(
        self,
        tokens_a_step: Mapping[int, int] | None = None,
        *,
        step_s: float = 0.02,
        has_plugin: bool = True,
        has_usage: bool = True,
        has_chat: bool = True,
        fails: str | None = None,
    ) -> None:
        self.tokens_a_step = dict(tokens_a_step or {0: 1, 2: 2, 4: 1})
        self.step_s, self.has_usage, self.has_chat, self.fails = step_s, has_usage, has_chat, fails
        self.engine = FakeEngine(has_plugin=has_plugin, legal=tuple(sorted(self.tokens_a_step)))
        self.bodies: list[dict[str, Any]] = []
        self.texts: dict[int, str] = {}
        """Text of every token, by the number of drafts in force; others: ``w``."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        started = threading.Event()

        async def start() -> None:
            app = web.Application()
            for path in PATHS:
                app.router.add_route("*", path, self._specctl)
            app.router.add_get("/v1/models", self._models)
            app.router.add_get("/health", self._models)
            app.router.add_post("/v1/completions", self._stream)
            app.router.add_post("/v1/chat/completions", self._stream)
            self._runner = web.AppRunner(app, shutdown_timeout=0.1)
            await self._runner.setup()
            site = web.TCPSite(self._runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
            started.set()

        def serve() -> None:
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(start())
            self._loop.run_forever()

        self._thread = threading.Thread(target=serve)
        self._thread.start()
        started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _specctl(self, request: web.Request) -> web.Response:
        status, body = self.engine.answer(
            request.method, request.path, dict(request.headers), await request.read()
        )
        return web.Response(status=status, body=body)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Requests are cut off at the end of a run."""
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        try:
            return await self._answer(request, answer)
        except ConnectionResetError:
            return answer

    async def _answer(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        is_chat = request.path.endswith("/chat/completions")
        if self.fails is not None or (is_chat and not self.has_chat):
            return web.json_response({"error": {"message": self.fails or "no template"}}, status=400)
        if not body.get("stream"):
            return web.json_response({"choices": [{"text": "x", "logprobs": None}]})
        await answer.prepare(request)
        sent, most = 0, int(body["max_tokens"])
        while sent < most:
            await asyncio.sleep(self.step_s)
            drafts = self.engine.tokens_at(1)
            count = min(self.tokens_a_step[drafts], most - sent)
            sent += count
            text = self.texts.get(drafts, "w") * count
            choice = {"index": 0, "delta": {"content": text}} if is_chat else {"index": 0, "text": text}
            event: dict[str, Any] = {"choices": [choice]}
            if self.has_usage:
                event["usage"] = {"prompt_tokens": 7, "completion_tokens": sent}
            await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        last = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": sent}}
        await answer.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
        return answer
