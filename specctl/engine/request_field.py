"""A request's own field: most drafts, its traffic class, whether others learn from its output."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specctl.contract.bounds import POSITIONS_MAX
from specctl.json_bounds import read_message
from specctl.plain_text import plain_text, plain_value

__all__ = ["FIELD_KEY", "TOOLS_KEY", "RequestField", "check_extras", "kept_field", "kind_of", "read_field"]

FIELD_KEY = "specctl"
"""In vLLM's ``vllm_xargs`` and in SGLang's ``custom_params``."""
TOOLS_KEY = "specctl_tools"
"""There, too, of requests that may call tools: the scheduler sees their prompt only."""
_CHARACTERS_MAX = 1024


class RequestField(BaseModel):
    """What a request says of its drafts. Its output is the same whatever it says."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_draft_tokens: int | None = Field(
        default=None,
        ge=0,
        le=POSITIONS_MAX,
        description="Most drafted tokens for this request and step; 0: never any; null: as the table says.",
    )
    kind: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9_-]{1,32}$",
        description="Its traffic class; null: tools, structured, sampled or greedy, as the request is.",
    )
    share: bool = Field(
        default=True, description="false: its output is kept out of what drafts for later requests."
    )


_UNSAID = RequestField()
_UNREAD = RequestField(share=False)


def read_field(value: object) -> RequestField:
    """``value``: an object, the same as JSON text (where an API passes scalars only), or None.

    Raises ValueError with what is wrong, in one printable line.
    """
    if value is None:
        return _UNSAID
    if isinstance(value, str):
        if len(value) > _CHARACTERS_MAX:
            raise ValueError(f"{FIELD_KEY}: over {_CHARACTERS_MAX} characters")
        return _of_text(value)
    if not isinstance(value, dict):
        raise ValueError(f"{FIELD_KEY}: expected an object or its JSON text, got {plain_value(value)}")
    try:
        return RequestField.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, (FIELD_KEY, *first["loc"])))
        raise ValueError(plain_text(f"{where}: {first['msg']}")) from None


def _of_text(text: str) -> RequestField:
    try:
        return read_message(RequestField, text.encode("utf-8", "replace"))
    except ValueError as error:
        raise ValueError(f"{FIELD_KEY}: {error}") from None


def check_extras(extras: object) -> None:
    """Raises ValueError where they hold a field that is wrong."""
    read_field(extras.get(FIELD_KEY) if isinstance(extras, dict) else None)


def kept_field(request: Any, extras: object) -> RequestField:
    """Read once, and kept at the request. It was checked where the request came in; what passed by that check
    is not learnt from."""
    field: RequestField | None = getattr(request, "specctl_field", None)
    if field is None:
        try:
            field = read_field(extras.get(FIELD_KEY) if isinstance(extras, dict) else None)
        except ValueError:
            field = _UNREAD
        request.specctl_field = field
    return field


def kind_of(field: RequestField, *, has_tools: bool, is_structured: bool, is_sampled: bool) -> str:
    """The traffic class by kind: the request's own word, else what drafts fare differently by."""
    if field.kind is not None:
        return field.kind
    if has_tools:
        return "tools"
    if is_structured:
        return "structured"
    return "sampled" if is_sampled else "greedy"
