"""Pods of a Kubernetes namespace by label selector, polled over the API server's plain HTTPS.

``GET /api/v1/namespaces/{namespace}/pods?labelSelector=...``, page by page. A pod is a target while it runs,
is ready, has an address and is not being deleted. Its labels become the target's.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from yarl import URL

from specctl.errors import SpecctlError, TargetError, TargetsError
from specctl.http_client import HttpClient, Response, read_token
from specctl.targets.base import Target, make_target

__all__ = ["KubernetesQuery", "KubernetesSource"]

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE_PODS = 200
PODS_MAX = 10_000
TIMEOUT_S = 10.0
BODY_MAX_BYTES = 32 * 1024 * 1024

_Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KubernetesQuery:
    """``port``: a number, or the name of a container's port. ``api`` None: as inside the cluster."""

    namespace: str
    selector: str
    port: int | str
    api: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class KubernetesSource:
    """``query.labels`` win over a pod's own."""

    def __init__(self, query: KubernetesQuery, *, interval_s: float, timeout_s: float = TIMEOUT_S) -> None:
        self.name = f"kubernetes {query} {interval_s:g}"
        self.interval_s = interval_s
        self._query = query
        self._timeout_s = timeout_s
        self._client: tuple[str, str, HttpClient] | None = None

    async def read(self) -> tuple[Target, ...]:
        where = f"kubernetes {self._query.namespace}, {self._query.selector}"
        try:
            try:
                pods = await self._pods()
            except _Expired:
                pods = await self._pods()
            found = [self._target(pod) for pod in pods]
        except _Expired as error:
            raise TargetsError(f"{where}: the list expired while it was read, twice (HTTP 410)") from error
        except (SpecctlError, OSError) as error:
            raise TargetsError(f"{where}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            words = f"{type(error).__name__}: {error}"
            raise TargetsError(f"{where}: the answer is no list of pods ({words})") from error
        return tuple(target for target in found if target is not None)

    async def close(self) -> None:
        if self._client is not None:
            await self._client[2].close()
            self._client = None

    async def _pods(self) -> list[_Json]:
        client = await self._connected()
        path = f"/api/v1/namespaces/{self._query.namespace}/pods"
        query = {"labelSelector": self._query.selector, "limit": str(PAGE_PODS)}
        pods: list[_Json] = []
        while True:
            page = _page(await client.get(f"{path}?{urlencode(query)}"))
            pods.extend(page["items"])
            rest = page.get("metadata", {}).get("continue")
            if not rest:
                return pods
            if len(pods) >= PODS_MAX:
                raise TargetsError(f"over {PODS_MAX} pods; narrow the selector")
            query["continue"] = rest

    async def _connected(self) -> HttpClient:
        """The token is read every time: the cluster replaces it about once an hour."""
        api, token = self._api(), read_token(self._query.token_file or ACCOUNT / "token")
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

    def _target(self, pod: _Json) -> Target | None:
        """None for a pod that should get no requests, or not yet."""
        metadata, status = pod["metadata"], pod.get("status", {})
        address = status.get("podIP")
        is_ready = any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in status.get("conditions") or ()
        )
        is_live = status.get("phase") == "Running" and metadata.get("deletionTimestamp") is None
        if not (address and is_ready and is_live):
            return None
        port = self._port(pod)
        if port is None:
            return None
        host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
        try:
            return make_target(
                f"http://{host}:{port}", {**(metadata.get("labels") or {}), **self._query.labels}
            )
        except TargetError as error:
            raise TargetsError(str(error)) from error

    def _port(self, pod: _Json) -> int | None:
        if isinstance(self._query.port, int):
            return self._query.port
        for container in pod.get("spec", {}).get("containers") or ():
            for port in container.get("ports") or ():
                if port.get("name") == self._query.port:
                    return int(port["containerPort"])
        return None


class _Expired(Exception):
    """HTTP 410: the list that was being paged through is too old. Reading it from its start helps."""


def _page(response: Response) -> _Json:
    if response.status == 410:
        raise _Expired
    if response.status != 200:
        words = {
            401: "the API server does not take the token",
            403: "the service account may not list pods here",
            404: "no such namespace, or no Kubernetes API",
        }
        raise TargetsError(f"{words.get(response.status, 'the API server fails')} (HTTP {response.status})")
    page = json.loads(response.body)
    if not isinstance(page, dict) or not isinstance(page.get("items"), list):
        raise ValueError("no items")
    return page


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
