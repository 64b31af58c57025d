"""Pods are listed once and watched: events change the targets, and a watch that fails costs no target."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fakes.kubernetes import FakeKubernetes, pod

from specctl.clock import SystemClock
from specctl.targets import kubernetes
from specctl.targets.kubernetes import KubernetesSource
from specctl.targets.models import KubernetesEntry

PATIENCE_S = 10.0


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


@asynccontextmanager
async def followed(
    api: FakeKubernetes, token: Path, interval_s: float = 0.2
) -> AsyncIterator[Callable[[], set[str]]]:
    """The source as the roster follows it: the addresses that it tells now."""
    query = KubernetesEntry(
        namespace="serving", selector="app=vllm", port=8000, api=api.url, token_file=token
    )
    source = KubernetesSource(query, {}, interval_s=interval_s, timeout_s=kubernetes.TIMEOUT_S)
    stop, known = asyncio.Event(), set[str]()

    async def follow() -> None:
        nonlocal known
        while not stop.is_set():
            known = {
                target.url.removeprefix("http://").removesuffix(":8000") for target in await source.read()
            }
            await source.changed(SystemClock(), stop)

    task = asyncio.create_task(follow())
    try:
        yield lambda: known
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        api.is_open = False
        await source.close()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def lists(api: FakeKubernetes) -> int:
    return sum("watch" not in asked for asked in api.requests)


def test_events_change_the_targets_without_another_list(token: Path) -> None:
    async def course() -> None:
        async with followed(api, token, interval_s=3600) as known:
            await until(lambda: known() == {"10.0.0.1"} and api.watches == 1)
            api.tell("ADDED", pod("10.0.0.2", ready=False))
            api.tell("MODIFIED", pod("10.0.0.2"))
            await until(lambda: known() == {"10.0.0.1", "10.0.0.2"})
            api.send(b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}')
            api.tell("DELETED", pod("10.0.0.1"))
            await until(lambda: known() == {"10.0.0.2"})
            assert (lists(api), api.watches) == (1, 1)

    with FakeKubernetes([pod("10.0.0.1")]) as api:
        asyncio.run(course())


def test_events_that_come_together_are_read_together(token: Path) -> None:
    async def course() -> None:
        async with followed(api, token, interval_s=3600) as known:
            await until(lambda: api.watches == 1)
            for i in range(1, 201):
                api.tell("ADDED", pod(f"10.0.1.{i}"))
            await until(lambda: len(known()) == 200)

    with FakeKubernetes([]) as api:
        asyncio.run(course())


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "ERROR", "object": {"kind": "Status", "code": 410}}',
        b"not JSON",
        b'{"type": "SURPRISE", "object": {}}',
        b'{"type": "ADDED", "object": ' + b"[" * 10_000,
        b"x" * (kubernetes.EVENT_MAX_BYTES + 65_536),
    ],
    ids=["expired", "no JSON", "unknown type", "deep", "endless line"],
)
def test_a_watch_that_breaks_is_followed_by_a_list(token: Path, line: bytes) -> None:
    async def course() -> None:
        async with followed(api, token) as known:
            await until(lambda: api.watches == 1)
            api.pods = [pod("10.0.0.1"), pod("10.0.0.9")]
            api.send(line)
            await until(lambda: known() == {"10.0.0.1", "10.0.0.9"} and api.watches >= 2)

    with FakeKubernetes([pod("10.0.0.1")]) as api:
        asyncio.run(course())


def test_without_the_right_to_watch_pods_are_listed(token: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        async with followed(api, token) as known:
            await until(lambda: known() == {"10.0.0.1"})
            api.pods = [pod("10.0.0.2")]
            await until(lambda: known() == {"10.0.0.2"} and lists(api) >= 4)

    with FakeKubernetes([pod("10.0.0.1")]) as api:
        api.watch_status = 403
        asyncio.run(course())
    assert [record.message.count("HTTP 403") for record in caplog.records] == [1]


def test_a_flood_of_events_ends_the_watch(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "EVENTS_PER_WATCH_MAX", 50)

    async def course() -> None:
        async with followed(api, token) as known:
            await until(lambda: api.watches == 1)
            for _ in range(60):
                api.send(json.dumps({"type": "MODIFIED", "object": pod("10.0.0.1")}).encode())
            await until(lambda: api.watches >= 2)
            assert known() == {"10.0.0.1"}

    with FakeKubernetes([pod("10.0.0.1")]) as api:
        asyncio.run(course())


def test_a_watch_that_only_drips_ends_in_time(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the list would stay as it is for ever."""
    monkeypatch.setattr(kubernetes, "WATCH_S", 0.5)
    monkeypatch.setattr(kubernetes, "TIMEOUT_S", 0.5)

    class Dripping(FakeKubernetes):
        def _events(self, sent: int) -> Iterator[bytes]:
            while self.is_open:
                yield b" "
                time.sleep(0.02)

    async def course() -> None:
        async with followed(api, token) as known:
            await until(lambda: api.watches == 1)
            api.pods = [pod("10.0.0.9")]
            await until(lambda: known() == {"10.0.0.9"})

    with Dripping([pod("10.0.0.1")]) as api:
        asyncio.run(course())
