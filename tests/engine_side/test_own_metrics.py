"""The plugin's counts on an engine's own /metrics, in both kinds of registry that engines have."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from pathlib import Path

import httpx
import pytest
from fakes.engine import FakeEngine, Traffic
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, make_asgi_app, multiprocess
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Mount

from specctl.contract.table import TablePut, uniform_rows
from specctl.engine import own_metrics
from specctl.engine.routes import attach, open_to
from specctl.metrics import names

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


class Ranks:
    """An engine of one rank whose scheduler is a fake one."""

    log = logging.getLogger("test.own_metrics")

    def __init__(self, fake: FakeEngine) -> None:
        self.fake, self.delay_s, self.calls = fake, 0.0, 0

    def numbers(self) -> list[int]:
        return [0]

    def front_end_waiting_pieces(self) -> int | None:
        return 2

    async def call(self, rank: int, operation: str, payload: str) -> str:
        self.calls += 1
        await asyncio.sleep(self.delay_s)
        verified = {"batches_verified_by_specctl": 7.0, "batches_verified_by_engine_min_p": 2.0, "other": 1.0}
        bodies = {
            "capabilities": lambda: self.fake.capabilities().model_dump(mode="json"),
            "table": lambda: self.fake.applied().model_dump(mode="json"),
            "telemetry": lambda: {
                **self.fake.telemetry(),
                "guarded_steps": 3,
                "self_checks": {"checked": 5, "identical": 4, "ties": 1},
                "failures": {"propose": 1},
                "proposer": verified,
                "classes": [],
            },
        }
        return json.dumps({"status": 200, "body": bodies[operation]()})


@pytest.fixture
def engine() -> Ranks:
    fake = FakeEngine(start_tokens=4, traffic=Traffic(decode_batch=1))
    fake.operator_puts(TablePut(base_version=0, rows=uniform_rows(3), owner="me", lease_s=30.0))
    fake.advance(5.0)
    return Ranks(fake)


def app_of(engine: Ranks | None, registry: CollectorRegistry) -> FastAPI:
    app = FastAPI()
    attach(app, None)
    route = Mount("/metrics", make_asgi_app(registry=registry))
    # As vLLM and SGLang do.
    route.path_regex = re.compile("^/metrics(?P<path>.*)$")
    app.routes.append(route)
    if engine is not None:
        open_to(app.state, engine)
    return app


def engines_own(tmp_path: Path | None = None) -> CollectorRegistry:
    registry = CollectorRegistry()
    if tmp_path is None:
        Counter("vllm:prompts", "Of the engine.", registry=registry).inc(5)
    else:
        multiprocess.MultiProcessCollector(registry, path=str(tmp_path))
    return registry


def pages(app: FastAPI, *headers: dict[str, str]) -> list[httpx.Response]:
    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [await client.get("/metrics", headers=one) for one in headers]

    return asyncio.run(ask())


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_counts_follow_the_engines_own(engine: Ranks) -> None:
    (page,) = pages(app_of(engine, engines_own()), {})
    assert int(page.headers["content-length"]) == len(page.content)
    found = samples(page.text)
    model = ("model_name", "fake")
    assert found["vllm:prompts_total", ()] == 5
    assert found["specctl_engine_answered", ()] == 1
    assert found["specctl_engine_table_version", (model,)] == 1
    assert found["specctl_engine_table_state", (model, ("state", "live"))] == 1
    assert found["specctl_engine_table_state", (model, ("state", "fallback"))] == 0
    assert 0 < found["specctl_engine_lease_remaining_seconds", (model,)] <= 30
    setting = (model, ("num_speculative_tokens", "3"), ("tree_topk", "1"))
    steps = sum(cell.steps for cell in engine.fake.cells.values())
    assert found["specctl_engine_steps_total", setting] == steps > 0
    assert found["specctl_engine_emitted_tokens_total", setting] == engine.fake.emitted
    ours = (("by", "specctl"), model, ("reason", ""))
    assert found["specctl_engine_verified_batches_total", ours] == 7
    assert found["specctl_engine_verified_batches_total", (("by", "engine"), model, ("reason", "min_p"))] == 2
    assert found["specctl_engine_plugin_failures_total", (("entry", "propose"), model)] == 1
    assert found["specctl_engine_guarded_steps_total", (model,)] == 3
    assert found["specctl_engine_front_end_waiting_pieces", (model,)] == 2


def test_every_name_is_served_with_its_help(engine: Ranks) -> None:
    (page,) = pages(app_of(engine, engines_own()), {})
    for metric in names.ENGINE:
        assert f"# HELP {metric.name} {metric.help}" in page.text
        assert f"# TYPE {metric.name} {metric.type}" in page.text


def test_a_registry_of_several_processes_and_every_format(engine: Ranks, tmp_path: Path) -> None:
    app = app_of(engine, engines_own(tmp_path))
    plain, compressed, open_format = pages(app, {}, {"Accept-Encoding": "gzip"}, OPENMETRICS)
    assert "specctl_engine_table_version" in plain.text
    assert "content-encoding" not in compressed.headers
    assert samples(compressed.text).keys() == samples(plain.text).keys()
    assert open_format.text.count("# EOF") == 1
    known = {family.name for family in openmetrics_families(open_format.text)}
    assert "specctl_engine_steps" in known


def test_a_scheduler_that_is_late_costs_a_second_at_most(engine: Ranks, monkeypatch) -> None:
    monkeypatch.setattr(own_metrics, "PATIENCE_S", 0.05)
    engine.delay_s = 30.0
    began_s = time.monotonic()
    (page,) = pages(app_of(engine, engines_own()), {})
    assert time.monotonic() - began_s < 5.0
    found = samples(page.text)
    assert found["vllm:prompts_total", ()] == 5
    assert found["specctl_engine_answered", ()] == 0
    assert ("specctl_engine_table_version", (("model_name", "fake"),)) not in found


def test_readers_of_one_second_share_an_answer(engine: Ranks) -> None:
    pages(app_of(engine, engines_own()), {}, {}, OPENMETRICS)
    assert engine.calls == 3, "capabilities, table, telemetry, once"


def test_an_engine_that_is_not_steered_serves_its_page_alone() -> None:
    (page,) = pages(app_of(None, engines_own()), {"Accept-Encoding": "gzip"})
    assert page.status_code == 200
    assert "specctl_engine" not in page.text
    assert page.headers["content-type"].startswith("text/plain")
