"""A request's own field, by the names that it goes by in SGLang."""

from __future__ import annotations

from typing import Any

from specctl.engine.request_field import TOOLS_KEY, RequestField, kept_field, kind_of

__all__ = ["field_of", "is_shared", "request_kind"]


def field_of(request: Any) -> RequestField:
    return kept_field(request, request.sampling_params.custom_params)


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
