"""Traffic classes as an engine tells requests apart and counts them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from specctl.contract.bounds import Positions
from specctl.contract.classes import ClassLimit
from specctl.contract.telemetry import Telemetry

__all__ = [
    "CLASSES_MAX",
    "OTHER",
    "ClassKey",
    "EngineTelemetry",
    "TrafficClass",
    "limit_of",
    "valid_kind",
]

CLASSES_MAX = 16
"""Classes that one engine tells apart at a time, "other" not counted."""
MESSAGE_CLASSES_MAX = 1024
"""Classes of one message: data-parallel ranks tell the union of theirs."""
_KIND = re.compile(r"[a-z0-9_-]{1,32}")


class ClassKey(NamedTuple):
    """``context_to_tokens``: upper end of the context bucket; 0 only of ``OTHER``."""

    namespace: str
    kind: str
    context_to_tokens: int


OTHER = ClassKey("", "", 0)
"""All requests for whose class there was no room."""


class TrafficClass(BaseModel):
    """Counters of one class since its first request; one that has rested long gives its place away.

    On a sample of the steps: shares tell, sums do not compare with the cells'.
    Every position counts for itself. ``watched_at[j]``: request-steps under a num_speculative_tokens over j;
    positions that the setting did not ask for are censored, not rejected.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    namespace: str = Field(
        max_length=160, description="adapter, and a digest of the cache salt; empty: shared"
    )
    kind: str = Field(max_length=32, description="as the request named it, else what it is")
    context_to_tokens: int = Field(
        ge=0, description="upper end: 1024, 4096, 16384, ...; 0: the class of all others"
    )
    decoding: int = Field(ge=0, description="gauge: requests of the last counted step")
    request_steps: int = Field(ge=0)
    watched_at: Positions
    drafted_at: Positions = Field(description="[j]: request-steps with more than j drafted tokens")
    reached_at: Positions = Field(
        description="[j]: of watched_at[j], those whose first j drafted tokens were all accepted"
    )
    accepted_at: Positions = Field(
        description="[j]: request-steps whose first j + 1 drafted tokens were all accepted"
    )

    @property
    def key(self) -> ClassKey:
        return ClassKey(self.namespace, self.kind, self.context_to_tokens)


class EngineTelemetry(Telemetry):
    """With what the daemon does not read."""

    classes: tuple[TrafficClass, ...] | None = Field(
        default=None, max_length=MESSAGE_CLASSES_MAX, fail_fast=True
    )


def limit_of(limits: Sequence[ClassLimit], key: ClassKey) -> int | None:
    """Most drafted tokens of a request of this class; None: the table's own number."""
    return next((limit.max_num_speculative_tokens for limit in limits if _matches(limit, key)), None)


def _matches(limit: ClassLimit, key: ClassKey) -> bool:
    return (
        _fits(limit.namespace, key.namespace)
        and _fits(limit.kind, key.kind)
        and limit.context_to_tokens in (None, key.context_to_tokens)
    )


def _fits(pattern: str, word: str) -> bool:
    return word.startswith(pattern[:-1]) if pattern.endswith("*") else word == pattern


def valid_kind(kind: object) -> str:
    """What a request names as its kind; "" for anything but 1 to 32 of a-z, 0-9, "_" and "-"."""
    return kind if isinstance(kind, str) and _KIND.fullmatch(kind) else ""
