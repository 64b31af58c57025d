"""Pods as the Kubernetes API sends them, and the targets that they are."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field
from pydantic.alias_generators import to_camel

from specctl.targets.base import Target, make_target
from specctl.targets.models import Labels

__all__ = ["Pod", "PodEvent", "PodList", "pod_target"]

LABELS_MAX = 256
PARTS_MAX = 256
VERSION_MAX = 256

_Part = TypeVar("_Part")
_Parts = Annotated[tuple[_Part, ...], Field(max_length=PARTS_MAX, fail_fast=True)]


class _Message(BaseModel, alias_generator=to_camel):
    """Parts of the API's objects; what they hold beside is not read."""


class _Metadata(_Message):
    name: str | None = Field(default=None, max_length=256)
    resource_version: str | None = Field(default=None, max_length=VERSION_MAX)
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


class Pod(_Message):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _ListMetadata(_Message):
    resource_version: str | None = Field(default=None, max_length=VERSION_MAX)
    rest: str | None = Field(default=None, alias="continue", max_length=16_384)


class PodList(_Message):
    metadata: _ListMetadata = _ListMetadata()
    items: tuple[Pod, ...] = Field(fail_fast=True)


class PodEvent(_Message):
    """One line of a watch. ERROR and BOOKMARK carry other objects, so that only the type counts there."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: Pod = Pod(metadata=_Metadata())


def pod_target(pod: Pod, port: int | str, labels: Labels) -> Target | None:
    """None for a pod that should get no requests, or not yet. ``labels`` win over the pod's own.

    Raises ValueError for an address that is none.
    """
    status, address = pod.status, pod.status.pod_ip
    conditions = [(one.type, one.status) for one in status.conditions or ()]
    is_live = status.phase == "Running" and pod.metadata.deletion_timestamp is None
    number = port if isinstance(port, int) else _named_port(pod, port)
    if not address or not is_live or ("Ready", "True") not in conditions or number is None:
        return None
    host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
    return make_target(f"http://{host}:{number}", {**(pod.metadata.labels or {}), **labels})


def _named_port(pod: Pod, name: str) -> int | None:
    ports = (port for one in pod.spec.containers or () for port in one.ports or ())
    return next((port.container_port for port in ports if port.name == name), None)
