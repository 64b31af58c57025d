"""A request's own field, by the names that it goes by in SGLang."""

from __future__ import annotations

from typing import Any

from specctl.engine.request_field import FIELD_KEY, RequestField, kind_of, read_field

__all__ = ["TOOLS_KEY", "check_custom_params", "field_of", "is_shared", "request_kind"]

TOOLS_KEY = "specctl_tools"
"""In ``custom_params`` of requests that may call tools: the scheduler sees their prompt only."""
_UNREAD = RequestField(share=False)


def check_custom_params(custom_params: object) -> None:
    """Raises ValueError where ``custom_params`` hold a field that is wrong."""
    if isinstance(custom_params, dict):
        read_field(custom_params.get(FIELD_KEY))


def field_of(request: Any) -> RequestField:
    """It was checked where the request came in; what passed by that check is not learnt from."""
    field: RequestField | None = getattr(request, "specctl_field", None)
    if field is None:
        custom = request.sampling_params.custom_params
        try:
            field = read_field(custom.get(FIELD_KEY) if isinstance(custom, dict) else None)
        except ValueError:
            field = _UNREAD
        request.specctl_field = field
    return field


def is_shared(request: Any) -> bool:
    """Whether its output may be drafted for other requests."""
    return field_of(request).share


def request_kind(request: Any) -> str:
    """Its traffic class by kind."""
    params = request.sampling_params
    custom = params.custom_params
    structured = (params.json_schema, params.regex, params.ebnf, params.structural_tag)
    return kind_of(
        field_of(request),
        has_tools=isinstance(custom, dict) and TOOLS_KEY in custom,
        is_structured=any(structured),
        # SGLang gives a request of temperature 0 a top_k of 1.
        is_sampled=params.top_k > 1,
    )
