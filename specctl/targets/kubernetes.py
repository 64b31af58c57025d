"""Pods of a Kubernetes namespace by label selector, polled over the API server's plain HTTPS.

``GET /api/v1/namespaces/{namespace}/pods?labelSelector=...``, page by page. A pod is a target while it runs,
is ready, has an address and is not being deleted. Its labels become the target's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, Field
from pydantic.alias_generators import to_camel
from yarl import URL

from specctl.errors import SpecctlError, TargetsError
from specctl.http_client import HttpClient, Response, read_token
from specctl.json_bounds import read_message
from specctl.local_file import in_thread
from specctl.plain_text import plain_text
from specctl.targets.base import Target, make_target
from specctl.targets.models import KubernetesEntry, Labels

__all__ = ["KubernetesSource"]

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE_PODS = 100
PODS_MAX = 10_000
PAGES_MAX = 200
LABELS_MAX = 256
PARTS_MAX = 256
OBJECTS_MAX = 200_000
TIMEOUT_S = 10.0
# For a whole list, page by page.
READ_TIMEOUT_S = 60.0
BODY_MAX_BYTES = 8 * 1024 * 1024


_Part = TypeVar("_Part")
_Parts = Annotated[tuple[_Part, ...], Field(max_length=PARTS_MAX, fail_fast=True)]


class _Message(BaseModel, alias_generator=to_camel):
    """Parts of the API's objects; what they hold beside is not read."""


class _Metadata(_Message):
    labels: Annotated[Labels, Field(max_length=LABELS_MAX)] | None = None
    deletion_timestamp: str | None = None


class _Condition(_Message):
    type: str
    status: str


class _Status(_Message):
    phase: str | None = None
    pod_ip: str | None = Field(default=None, alias="podIP", max_length=64)
    conditions: _Parts[_Condition] | None = None


class _Port(_Message):
    name: str | None = None
    container_port: int = Field(ge=1, le=65535)


class _Container(_Message):
    ports: _Parts[_Port] | None = None


class _Spec(_Message):
    containers: _Parts[_Container] | None = None


class _Pod(_Message):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _ListMetadata(_Message):
    rest: str | None = Field(default=None, alias="continue", max_length=16_384)


class _PodList(_Message):
    metadata: _ListMetadata = _ListMetadata()
    items: tuple[_Pod, ...] = Field(fail_fast=True)


class KubernetesSource:
    """``labels`` win over a pod's own."""

    def __init__(
        self, query: KubernetesEntry, labels: Labels, *, interval_s: float, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.name = f"kubernetes {query} {sorted(labels.items())} {interval_s:g}"
        self.interval_s = interval_s
        self._query, self._labels = query, labels
        self._timeout_s = timeout_s
        self._client: tuple[str, str, HttpClient] | None = None

    async def read(self) -> tuple[Target, ...]:
        where = f"kubernetes {self._query.namespace}, {plain_text(self._query.selector)}"
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                try:
                    pods = await self._pods()
                except _Expired:
                    pods = await self._pods()
            found = [self._target(pod) for pod in pods]
        except _Expired as error:
            raise TargetsError(f"{where}: the list expired while it was read, twice (HTTP 410)") from error
        except TimeoutError as error:
            raise TargetsError(f"{where}: not read within {READ_TIMEOUT_S:g} s") from error
        except (SpecctlError, OSError, ValueError) as error:
            raise TargetsError(f"{where}: {error}") from error
        return tuple(target for target in found if target is not None)

    async def close(self) -> None:
        if self._client is not None:
            await self._client[2].close()
            self._client = None

    async def _pods(self) -> list[_Pod]:
        client = await self._connected()
        path = f"/api/v1/namespaces/{self._query.namespace}/pods"
        query = {"labelSelector": self._query.selector, "limit": str(PAGE_PODS)}
        pods: list[_Pod] = []
        for _ in range(PAGES_MAX):
            page = _page(await client.get(f"{path}?{urlencode(query)}"))
            pods.extend(page.items)
            if not page.metadata.rest:
                return pods
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
            await self.close()
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

    def _target(self, pod: _Pod) -> Target | None:
        """None for a pod that should get no requests, or not yet."""
        status, address = pod.status, pod.status.pod_ip
        conditions = [(one.type, one.status) for one in status.conditions or ()]
        is_live = status.phase == "Running" and pod.metadata.deletion_timestamp is None
        port = self._port(pod)
        if not address or not is_live or ("Ready", "True") not in conditions or port is None:
            return None
        host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
        return make_target(f"http://{host}:{port}", {**(pod.metadata.labels or {}), **self._labels})

    def _port(self, pod: _Pod) -> int | None:
        if isinstance(self._query.port, int):
            return self._query.port
        ports = (port for one in pod.spec.containers or () for port in one.ports or ())
        return next((port.container_port for port in ports if port.name == self._query.port), None)


class _Expired(Exception):
    """HTTP 410: the list that was being paged through is too old. Reading it from its start helps."""


def _page(response: Response) -> _PodList:
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
        return read_message(_PodList, response.body, OBJECTS_MAX)
    except ValueError as error:
        raise TargetsError(f"the answer is no list of pods ({error})") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
