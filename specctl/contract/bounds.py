"""What a message is, and how much it may hold, whatever a server sends: structure over a bound refuses it, a
text is cut and made printable."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from specctl.plain_text import plain_text

__all__ = [
    "BootId",
    "Change",
    "Counters",
    "Message",
    "Positions",
    "Short",
    "Size",
    "Text",
    "Warnings",
]

POSITIONS_MAX = 1024
WARNINGS_MAX = 16
WARNING_CHARACTERS_MAX = 300
COUNTERS_MAX = 64


class Message(BaseModel):
    """What one side tells: keys that the other one does not know are left out."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Change(BaseModel):
    """What is asked of an engine: a key that it does not know is refused, and a value of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _boot_id(text: str) -> str:
    """Compared as it is, so that it is not made printable."""
    if not text.isprintable():
        raise ValueError("expected printable characters")
    return text


def _first_warnings(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        return value
    return [plain_text(one, WARNING_CHARACTERS_MAX) for one in value[:WARNINGS_MAX]]


def _first_counters(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {plain_text(str(name), 64): count for name, count in islice(value.items(), COUNTERS_MAX)}


BootId = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_boot_id)]
Text = Annotated[str, AfterValidator(plain_text)]
Short = Annotated[str, AfterValidator(lambda text: plain_text(text, 128))]
Size = Annotated[int, Field(ge=1, le=1 << 40)]
Positions = Annotated[tuple[int, ...], Field(max_length=POSITIONS_MAX, fail_fast=True)]
Warnings = Annotated[tuple[str, ...], BeforeValidator(_first_warnings)]
Counters = Annotated[dict[str, float], BeforeValidator(_first_counters)]
