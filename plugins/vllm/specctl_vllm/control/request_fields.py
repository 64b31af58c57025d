"""A request's own field, by the names that it goes by in vLLM."""

from __future__ import annotations

from typing import Any

from specctl.engine.request_field import TOOLS_KEY, RequestField, kept_field, kind_of

__all__ = ["GREEDY_TEMPERATURE_MAX", "field_of", "is_shared", "request_kind"]

GREEDY_TEMPERATURE_MAX = 1e-5
"""vLLM's own bound: requests below it are greedy (SamplingParams)."""


def field_of(request: Any) -> RequestField:
    return kept_field(request, getattr(request.sampling_params, "extra_args", None))


def is_shared(request: Any) -> bool:
    """Whether its output may be drafted for other requests."""
    return field_of(request).share


def request_kind(request: Any) -> str:
    """Its traffic class by kind; "" of a request that samples no tokens."""
    sampling = request.sampling_params
    if sampling is None:
        return ""
    return kind_of(
        field_of(request),
        has_tools=TOOLS_KEY in (sampling.extra_args or {}),
        is_structured=sampling.structured_outputs is not None,
        is_sampled=sampling.temperature >= GREEDY_TEMPERATURE_MAX,
    )
