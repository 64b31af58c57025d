"""Traffic classes: requests that are told apart because their drafts may fare differently."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from specctl.contract.bounds import Positions

__all__ = [
    "CLASSES_MAX",
    "CLASS_LIMITS_MAX",
    "KIND_KEY",
    "OTHER",
    "ClassKey",
    "ClassLimit",
    "TrafficClass",
    "class_words",
    "context_bucket",
    "limit_of",
    "valid_kind",
]

CLASSES_MAX = 16
"""Classes that one engine tells apart at a time, "other" not counted."""
CLASS_LIMITS_MAX = 16
"""Rules for classes in one table."""
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


class ClassLimit(BaseModel):
    """The most drafted tokens of the requests of some classes. Of several that match, the first one holds."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    namespace: str = Field(
        default="*",
        max_length=160,
        pattern=r"^[^*]*\*?$",
        description="Adapter and salt as telemetry tells them; a * at the end stands for any rest.",
    )
    kind: str = Field(
        default="*",
        max_length=33,
        pattern=r"^[a-z0-9_-]*\*?$",
        description="The word that the request named; a * at the end stands for any rest, empty for no word.",
    )
    context_to_tokens: int | None = Field(
        default=None,
        ge=CONTEXT_FIRST_TOKENS,
        le=1 << 30,
        description="Upper end of a context bucket: 1024, 4096, 16384, ...; null: any context.",
    )
    max_num_speculative_tokens: int = Field(
        ge=0, le=1024, description="Most drafted tokens for a request and step; 0: never any."
    )

    @field_validator("context_to_tokens")
    @classmethod
    def _is_a_bucket(cls, value: int | None) -> int | None:
        if value is not None and context_bucket(value) != value:
            raise ValueError(f"{value} is no bucket's upper end; the next one is {context_bucket(value)}")
        return value

    @property
    def classes(self) -> tuple[str, str, int | None]:
        """What the rule is for."""
        return self.namespace, self.kind, self.context_to_tokens

    def matches(self, key: ClassKey) -> bool:
        return (
            _fits(self.namespace, key.namespace)
            and _fits(self.kind, key.kind)
            and self.context_to_tokens in (None, key.context_to_tokens)
        )


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


def limit_of(limits: Sequence[ClassLimit], key: ClassKey) -> int | None:
    """Most drafted tokens of a request of this class; None: the table's own number."""
    return next((limit.max_num_speculative_tokens for limit in limits if limit.matches(key)), None)


def class_words(limit: ClassLimit) -> str:
    """Which classes a rule is for, in plain words."""
    parts = [
        "" if limit.namespace == "*" else f"namespace {limit.namespace or 'shared'}",
        "" if limit.kind == "*" else f"kind {limit.kind or 'not named'}",
        "" if limit.context_to_tokens is None else f"context up to {limit.context_to_tokens}",
    ]
    return ", ".join(part for part in parts if part) or "every class"


def _fits(pattern: str, word: str) -> bool:
    return word.startswith(pattern[:-1]) if pattern.endswith("*") else word == pattern


def context_bucket(context_tokens: int) -> int:
    """Upper end, inclusive, of the bucket: 1024 and its multiples by powers of 4."""
    upper = CONTEXT_FIRST_TOKENS
    while upper < context_tokens:
        upper *= 4
    return upper


def valid_kind(told: object) -> str:
    """What a request told as its kind; "" for anything but 1 to 32 of a-z, 0-9, "_" and "-"."""
    return told if isinstance(told, str) and _KIND.fullmatch(told) else ""
