"""The keys of a targets file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

__all__ = ["KubernetesEntry", "PolicyRule", "TargetEntry", "TargetsSettings"]

LabelName = Annotated[str, StringConstraints(min_length=1, max_length=317)]
LabelValue = Annotated[str, StringConstraints(max_length=256)]
Labels = dict[LabelName, LabelValue]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PolicyRule(_Settings):
    """Targets with all of these labels get this policy."""

    match: Labels = Field(description="Labels that a target must have, all of them; {} matches every target.")
    policy: str = Field(
        min_length=1,
        max_length=4096,
        description="A policy file, from this file's folder, or a shipped policy's name.",
    )


class KubernetesEntry(_Settings):
    """Pods by label selector. Inside a cluster only namespace, selector and port are needed."""

    namespace: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", description="Of the pods.")
    selector: str = Field(
        min_length=1, max_length=4096, description="Label selector, as kubectl get pods --selector takes it."
    )
    port: Annotated[int, Field(ge=1, le=65535)] | Annotated[str, StringConstraints(min_length=1)] = Field(
        description="Number, or the name of a container's port."
    )
    api: str | None = Field(default=None, description="URL of the API server; null: as inside a cluster.")
    token_file: Path | None = Field(default=None, description="Bearer token; null: the service account's.")
    ca_file: Path | None = Field(default=None, description="CA of the API server; null: the cluster's.")


class TargetEntry(_Settings):
    """One of url, dns and kubernetes."""

    url: str | None = Field(default=None, description="host:port or http://host:port of one server.")
    dns: str | None = Field(
        default=None, pattern=r"^[^:/\s]+:\d{1,5}$", description="host:port; every address is a server."
    )
    kubernetes: KubernetesEntry | None = Field(default=None, description="Pods by label selector.")
    labels: Labels = Field(default_factory=dict, description="For the rules; they win over a pod's own.")
    interval_s: float = Field(
        default=10.0,
        ge=1,
        le=3600,
        description="Seconds between two reads of DNS, and between two lists of pods that cannot be watched.",
    )

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        given = [name for name in ("url", "dns", "kubernetes") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of url, dns, kubernetes; got {' and '.join(given) or 'none'}")
        if self.dns is not None and not 1 <= int(self.dns.rpartition(":")[2]) <= 65535:
            raise ValueError(f"dns: {self.dns}: the port is outside 1 to 65535")
        return self


class TargetsSettings(_Settings):
    """A whole targets file."""

    frozen: bool = Field(default=False, description="true: all these targets keep their tables.")
    policies: tuple[PolicyRule, ...] = Field(
        default=(), max_length=256, description="The first rule that matches a target's labels wins."
    )
    targets: tuple[TargetEntry, ...] = Field(max_length=10_000, description="Where the servers are.")
