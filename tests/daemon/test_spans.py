"""Spans of table changes, received by a collector that speaks OTLP over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from fakes.http_server import FakeServer

COURSE = """
from opentelemetry import trace
from specctl.daemon.spans import export_spans, record_change

export_spans()
record_change("http://a:1", "me", {"reason": "gain", "version": 3, "changes": ["1: 0 -> 4"], "off": None})
provider = trace.get_tracer_provider()
if hasattr(provider, "shutdown"):
    provider.shutdown()
"""


class Collector(FakeServer):
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        self.bodies.append(path.encode() + body)
        return 200, b""


def run(environment: dict[str, str]) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", COURSE],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr


def test_a_change_reaches_the_collector() -> None:
    with Collector() as collector:
        run({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"})
    [body] = collector.bodies
    assert body.startswith(b"/v1/traces")
    for part in (b"specctl.table_change", b"specctl.reason", b"gain", b"http://a:1", b'["1: 0 -> 4"]'):
        assert part in body
    assert b"specctl.off" not in body


def test_nothing_is_sent_without_a_collector() -> None:
    assert run({}) == ""
