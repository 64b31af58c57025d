"""Traffic classes: requests that are told apart because their drafts may fare differently."""

from __future__ import annotations

import re
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CLASSES_MAX", "KIND_KEY", "OTHER", "ClassKey", "TrafficClass", "context_bucket", "valid_kind"]

CLASSES_MAX = 16
"""Classes that one engine tells apart at a time, "other" not counted."""
TOLD_MAX = 1024
"""Classes of one message: data-parallel ranks tell the union of theirs."""
KIND_KEY = "specctl_kind"
"""A request's own word for what it is, where the engine lets requests carry such words."""
CONTEXT_FIRST_TOKENS = 1024
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
    kind: str = Field(max_length=32, description="as the request named it; empty: it did not")
    context_to_tokens: int = Field(
        ge=0, description="upper end: 1024, 4096, 16384, ...; 0: the class of all others"
    )
    decoding: int = Field(ge=0, description="gauge: requests of the last counted step")
    request_steps: int = Field(ge=0)
    watched_at: tuple[int, ...]
    drafted_at: tuple[int, ...] = Field(description="[j]: request-steps with more than j drafted tokens")
    reached_at: tuple[int, ...] = Field(
        description="[j]: of watched_at[j], those whose first j drafted tokens were all accepted"
    )
    accepted_at: tuple[int, ...] = Field(
        description="[j]: request-steps whose first j + 1 drafted tokens were all accepted"
    )

    @property
    def key(self) -> ClassKey:
        return ClassKey(self.namespace, self.kind, self.context_to_tokens)


def context_bucket(context_tokens: int) -> int:
    """Upper end, inclusive, of the bucket: 1024 and its multiples by powers of 4."""
    upper = CONTEXT_FIRST_TOKENS
    while upper < context_tokens:
        upper *= 4
    return upper


def valid_kind(told: object) -> str:
    """What a request told as its kind; "" for anything but 1 to 32 of a-z, 0-9, "_" and "-"."""
    return told if isinstance(told, str) and _KIND.fullmatch(told) else ""
