"""The plugin's counts behind vLLM's own /metrics route, without an engine."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import pytest
from fakes.engine import FakeEngine, Traffic
from fastapi import FastAPI

from specctl.engine.routes import attach, open_to

metrics = pytest.importorskip("vllm.entrypoints.serve.instrumentator.metrics")


class Ranks:
    log = logging.getLogger("test.own_metrics")

    def __init__(self, fake: FakeEngine) -> None:
        self._fake = fake

    def numbers(self) -> list[int]:
        return [0]

    def front_end_waiting_pieces(self) -> int | None:
        return 0

    async def call(self, rank: int, operation: str, payload: str) -> str:
        bodies = {
            "capabilities": lambda: self._fake.capabilities().model_dump(mode="json"),
            "table": lambda: self._fake.applied().model_dump(mode="json"),
            "telemetry": lambda: {**self._fake.telemetry(), "classes": []},
        }
        return json.dumps({"status": 200, "body": bodies[operation]()})


@pytest.mark.parametrize("several", [False, True], ids=["one process", "several processes"])
def test_vllms_page_goes_on_with_the_plugins(monkeypatch, tmp_path, several: bool) -> None:
    if several:
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    app = FastAPI()
    metrics.attach_router(app)
    attach(app, None)
    fake = FakeEngine(start_tokens=4, traffic=Traffic(decode_batch=1))
    fake.advance(3.0)
    open_to(app.state, Ranks(fake))

    async def course() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [
                await client.get("/metrics"),
                await client.get("/metrics", headers={"Accept-Encoding": "gzip"}),
            ]

    for page in asyncio.run(course()):
        assert page.status_code == 200
        assert "specctl_engine_answered 1.0" in page.text
        assert (
            'specctl_engine_steps_total{model_name="fake",num_speculative_tokens="4",tree_topk="1"}'
            in page.text
        )
        assert ("python_info" in page.text) == (not several), "vLLM's own part is there as before"
