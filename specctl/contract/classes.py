"""Rules for traffic classes: requests that are told apart because their drafts may fare differently."""

from __future__ import annotations

from pydantic import Field, field_validator

from specctl.contract.bounds import Change
from specctl.plain_text import plain_text

__all__ = [
    "CLASS_LIMITS_MAX",
    "ClassLimit",
    "class_words",
    "context_bucket",
]

CLASS_LIMITS_MAX = 16
"""Rules for classes in one table."""
CONTEXT_FIRST_TOKENS = 1024


class ClassLimit(Change):
    """The most drafted tokens of the requests of some classes. Of several that match, the first one holds."""

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
        description="The request's kind, named or found by the engine; a * at the end stands for any rest.",
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


def class_words(limit: ClassLimit) -> str:
    """Which classes a rule is for, in plain words."""
    parts = [
        "" if limit.namespace == "*" else f"namespace {plain_text(limit.namespace) or 'shared'}",
        "" if limit.kind == "*" else f"kind {limit.kind or 'not named'}",
        "" if limit.context_to_tokens is None else f"context up to {limit.context_to_tokens}",
    ]
    return ", ".join(part for part in parts if part) or "every class"


def context_bucket(context_tokens: int) -> int:
    """Upper end, inclusive, of the bucket: 1024 and its multiples by powers of 4."""
    upper = CONTEXT_FIRST_TOKENS
    while upper < context_tokens:
        upper *= 4
    return upper
