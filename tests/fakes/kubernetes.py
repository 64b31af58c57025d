"""A fake Kubernetes API server: lists pods, page by page, and lets them be watched. Faults by attributes."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fakes.http_server import FakeServer


def pod(address: str | None, **changes: Any) -> dict[str, Any]:
    """A pod that runs and is ready, unless ``ready``, ``phase`` or ``deleted`` say otherwise."""
    metadata: dict[str, Any] = {"name": f"pod-{address}", "labels": changes.get("labels", {"app": "vllm"})}
    if changes.get("deleted"):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ready = "True" if changes.get("ready", True) else "False"
    status: dict[str, Any] = {"phase": changes.get("phase", "Running")}
    status["conditions"] = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}]
    if address is not None:
        status["podIP"] = address
    ports = [{"name": "metrics", "containerPort": 9000}, {"name": "http", "containerPort": 8000}]
    return {"metadata": metadata, "spec": {"containers": [{}, {"ports": ports}]}, "status": status}


class FakeKubernetes(FakeServer):
    """``token``: what is accepted. ``statuses``: answers of the next requests, before the real ones."""

    def __init__(self, pods: list[dict[str, Any]], tls: ssl.SSLContext | None = None) -> None:
        self.pods, self.tls = pods, tls
        self.token = "secret"
        self.namespace = "serving"
        self.delay_s = 0.0
        self.statuses: list[int] = []
        self.body: bytes | None = None
        self.requests: list[dict[str, list[str]]] = []
        self.watch_status = 200
        self.is_open = True
        self._lines: list[bytes] = []
        self._watches = 0

    def tell(self, kind: str, pod: dict[str, Any]) -> None:
        """An event for every watch; the lists that follow know it as well."""
        name = pod["metadata"]["name"]
        others = [one for one in self.pods if one["metadata"]["name"] != name]
        self.pods = others if kind == "DELETED" else [*others, pod]
        self.send(json.dumps({"type": kind, "object": pod}).encode())

    def send(self, line: bytes) -> None:
        self._lines.append(line)

    @property
    def watches(self) -> int:
        """How many were opened."""
        return self._watches

    def stream(self, path: str) -> Iterator[bytes] | None:
        """The events after the list, until ``is_open`` is False."""
        asked = parse_qs(urlsplit(path).query)
        if "watch" not in asked or self.watch_status != 200:
            return None
        assert asked["resourceVersion"] == ["7"]
        self._watches += 1
        return self._events(len(self._lines))

    def _events(self, sent: int) -> Iterator[bytes]:
        while self.is_open:
            while sent < len(self._lines):
                sent += 1
                yield self._lines[sent - 1] + b"\n"
            time.sleep(0.01)

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        time.sleep(self.delay_s)
        parts = urlsplit(path)
        asked = parse_qs(parts.query)
        self.requests.append(asked)
        if "watch" in asked:
            return self.watch_status, b'{"kind": "Status"}'
        if self.statuses:
            return self.statuses.pop(0), b'{"kind": "Status"}'
        if authorization != f"Bearer {self.token}":
            return 401, b'{"kind": "Status", "code": 401}'
        if parts.path != f"/api/v1/namespaces/{self.namespace}/pods":
            return 404, b'{"kind": "Status", "code": 404}'
        if self.body is not None:
            return 200, self.body
        name, _, value = asked["labelSelector"][0].partition("=")
        chosen = [pod for pod in self.pods if pod["metadata"]["labels"].get(name) == value]
        first, size = int(asked.get("continue", ["0"])[0]), int(asked["limit"][0])
        rest = str(first + size) if first + size < len(chosen) else ""
        items = chosen[first : first + size]
        page = {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {"continue": rest, "resourceVersion": "7"},
            "items": items,
        }
        return 200, json.dumps(page).encode()

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        return self.answer(path, headers.get("Authorization"))
