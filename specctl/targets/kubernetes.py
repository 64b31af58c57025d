"""Pods of a Kubernetes namespace by label selector: listed once, then watched.

``GET /api/v1/namespaces/{namespace}/pods?labelSelector=...``, page by page, then the same with ``watch=true``
from the list's resource version (Kubernetes API concepts, "Efficient detection of changes"). A pod is a
target while it runs, is ready, has an address and is not being deleted. Its labels become the target's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlencode

from yarl import URL

from specctl.clock import Clock
from specctl.errors import SpecctlError, TargetError, TargetsError
from specctl.http_client import HttpClient, Response, read_token
from specctl.json_bounds import read_message
from specctl.local_file import in_thread
from specctl.plain_text import plain_text
from specctl.targets.base import Target
from specctl.targets.models import KubernetesEntry, Labels
from specctl.targets.pods import Pod, PodEvent, PodList, pod_target

__all__ = ["KubernetesSource"]

logger = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE_PODS = 100
PODS_MAX = 10_000
PAGES_MAX = 200
OBJECTS_MAX = 200_000
TIMEOUT_S = 10.0
# For a whole list, page by page.
READ_TIMEOUT_S = 60.0
BODY_MAX_BYTES = 8 * 1024 * 1024
# The API server ends a watch after so long; the list is then read afresh.
WATCH_S = 300
EVENT_MAX_BYTES = 1024 * 1024
EVENTS_PER_WATCH_MAX = 100_000
# Events that come together are taken together: a rollout moves many pods at once.
SETTLE_S = 0.2


class KubernetesSource:
    """``labels`` win over a pod's own. ``interval_s``: between two lists where the watch fails."""

    def __init__(
        self, query: KubernetesEntry, labels: Labels, *, interval_s: float, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.name = f"kubernetes {query} {sorted(labels.items())} {interval_s:g}"
        self.interval_s = interval_s
        self._query, self._labels = query, labels
        self._timeout_s = timeout_s
        self._client: tuple[str, str, HttpClient] | None = None
        self._where = f"kubernetes {query.namespace}, {plain_text(query.selector)}"
        # By name, as last listed and watched; None: to be listed.
        self._pods: dict[str, Pod] | None = None
        self._version: str | None = None
        self._watch: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._watch_refusal: str | None = None

    async def read(self) -> tuple[Target, ...]:
        try:
            if self._pods is None:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    await self._list()
            pods = self._pods or {}
            found = [pod_target(pod, self._query.port, self._labels) for pod in pods.values()]
        except _Expired as error:
            raise TargetsError(
                f"{self._where}: the list expired while it was read, twice (HTTP 410)"
            ) from error
        except TimeoutError as error:
            raise TargetsError(f"{self._where}: not read within {READ_TIMEOUT_S:g} s") from error
        except (SpecctlError, OSError, ValueError) as error:
            self._pods = None
            raise TargetsError(f"{self._where}: {error}") from error
        return tuple(target for target in found if target is not None)

    async def changed(self, clock: Clock, stop: asyncio.Event) -> None:
        """Until the watch brings an event; without a watch, for ``interval_s``."""
        if self._pods is None or self._version is None:
            self._pods = None
            await clock.sleep(self.interval_s, stop)
            return
        if self._watch is None:
            self._watch = asyncio.create_task(self._follow(self._version, self._pods))
        moved = asyncio.create_task(self._moved.wait())
        try:
            await asyncio.wait({self._watch, moved}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            moved.cancel()
        await clock.sleep(SETTLE_S, stop)
        self._moved.clear()
        if self._watch.done():
            await self._ended(self._watch, clock, stop)

    async def close(self) -> None:
        await self._end_watch()
        self._pods = None
        if self._client is not None:
            await self._client[2].close()
            self._client = None

    async def _follow(self, version: str, pods: dict[str, Pod]) -> None:
        """One watch, applied to ``pods``. Raises TargetError; returns where the server ends it."""
        client = await self._connected()
        query = {
            "labelSelector": self._query.selector,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        lines = client.lines(
            f"{self._path}?{urlencode(query)}",
            line_max_bytes=EVENT_MAX_BYTES,
            silence_max_s=WATCH_S + self._timeout_s,
        )
        # Bytes that never make an event must not keep the list as it is for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCH_S + self._timeout_s), aclosing(lines):
                await self._take(lines, pods)

    async def _take(self, lines: AsyncGenerator[bytes, None], pods: dict[str, Pod]) -> None:
        events = 0
        async for line in lines:
            events += 1
            if events > EVENTS_PER_WATCH_MAX:
                raise TargetError(f"over {EVENTS_PER_WATCH_MAX} events of one watch")
            if line.strip() and not self._apply(line, pods):
                return

    def _apply(self, line: bytes, pods: dict[str, Pod]) -> bool:
        """False: the server says that the watch is over. Raises TargetError."""
        try:
            event = read_message(PodEvent, line, OBJECTS_MAX)
        except ValueError as error:
            raise TargetError(f"the watch brings no events of pods ({error})") from error
        if event.type == "ERROR":
            return False
        name = event.object.metadata.name
        if event.type != "BOOKMARK" and name:
            if event.type == "DELETED":
                pods.pop(name, None)
            elif len(pods) < PODS_MAX or name in pods:
                pods[name] = event.object
            self._moved.set()
        return True

    async def _ended(self, watch: asyncio.Task[None], clock: Clock, stop: asyncio.Event) -> None:
        """The next read lists afresh: at once after a watch of the usual length, else after a while."""
        self._watch, self._pods = None, None
        error = None if watch.cancelled() else watch.exception()
        if error is not None and not isinstance(error, SpecctlError | OSError):
            raise error
        words = None if error is None else str(error)
        if words != self._watch_refusal and words is not None:
            logger.warning("targets: %s: %s; listed every %g s", self._where, words, self.interval_s)
        self._watch_refusal = words
        await clock.sleep(self.interval_s if words else min(1.0, self.interval_s), stop)

    async def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await watch

    async def _list(self) -> None:
        await self._end_watch()
        self._moved.clear()
        try:
            pods, version = await self._pages()
        except _Expired:
            pods, version = await self._pages()
        # The API server names every pod; a name that is missing is made up, so that none is lost.
        self._pods = {pod.metadata.name or f"#{i}": pod for i, pod in enumerate(pods)}
        self._version = version

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._query.namespace}/pods"

    async def _pages(self) -> tuple[list[Pod], str | None]:
        """Every pod, and the resource version of the list."""
        client = await self._connected()
        query = {"labelSelector": self._query.selector, "limit": str(PAGE_PODS)}
        pods: list[Pod] = []
        for _ in range(PAGES_MAX):
            page = _page(await client.get(f"{self._path}?{urlencode(query)}"))
            pods.extend(page.items)
            if not page.metadata.rest:
                return pods, page.metadata.resource_version
            if len(pods) >= PODS_MAX:
                raise TargetsError(f"over {PODS_MAX} pods; narrow the selector")
            if not page.items or page.metadata.rest == query.get("continue"):
                raise TargetsError("the API server's list does not end")
            query["continue"] = page.metadata.rest
        raise TargetsError(f"over {PAGES_MAX} pages of pods")

    async def _connected(self) -> HttpClient:
        """The token is read every time: the cluster replaces it about once an hour."""
        path = self._query.token_file or ACCOUNT / "token"
        api, token = self._api(), await in_thread(lambda: read_token(path, is_own=False), "token file")
        if self._client is None or self._client[:2] != (api, token):
            if self._client is not None:
                await self._client[2].close()
            ca_file = self._query.ca_file or (ACCOUNT / "ca.crt" if self._query.api is None else None)
            client = HttpClient(
                api, token=token, timeout_s=self._timeout_s, body_max_bytes=BODY_MAX_BYTES, ca_file=ca_file
            )
            self._client = (api, token, client)
        return self._client[2]

    def _api(self) -> str:
        if self._query.api is None:
            host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
            if not host:
                raise TargetsError("not in a cluster (no KUBERNETES_SERVICE_HOST); give api and token_file")
            return f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"
        url = URL(self._query.api)
        if url.scheme != "https" and not _is_loopback(url.host or ""):
            raise TargetsError(f"{self._query.api}: the token goes over https or to this machine only")
        return self._query.api.rstrip("/")


class _Expired(Exception):
    """HTTP 410: the list that was being paged through is too old. Reading it from its start helps."""


def _page(response: Response) -> PodList:
    """Raises _Expired and TargetsError."""
    if response.status == 410:
        raise _Expired
    if response.status != 200:
        words = {
            401: "the API server does not take the token",
            403: "the service account may not list pods here",
            404: "no such namespace, or no Kubernetes API",
        }
        raise TargetsError(f"{words.get(response.status, 'the API server fails')} (HTTP {response.status})")
    try:
        return read_message(PodList, response.body, OBJECTS_MAX)
    except ValueError as error:
        raise TargetsError(f"the answer is no list of pods ({error})") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
