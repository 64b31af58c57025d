"""A request's own field, by the names that it goes by in vLLM."""

from __future__ import annotations

from typing import Any

from specctl.engine.request_field import FIELD_KEY, RequestField, kind_of, read_field

__all__ = ["GREEDY_TEMPERATURE_MAX", "TOOLS_KEY", "check_extra_args", "field_of", "is_shared", "request_kind"]

TOOLS_KEY = "specctl_tools"
"""In ``extra_args`` of requests that may call tools: the engine core sees their prompt only."""
GREEDY_TEMPERATURE_MAX = 1e-5
"""vLLM's own bound: requests below it are greedy (SamplingParams)."""
_UNREAD = RequestField(share=False)


def check_extra_args(extra_args: dict[str, Any] | None) -> None:
    """Raises ValueError where ``vllm_xargs`` (HTTP) or ``extra_args`` (Python) hold a field that is wrong."""
    if extra_args:
        read_field(extra_args.get(FIELD_KEY))


def field_of(request: Any) -> RequestField:
    """It was checked where the request came in; what passed by that check is not learnt from."""
    field: RequestField | None = getattr(request, "specctl_field", None)
    if field is None:
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        try:
            field = read_field(extra.get(FIELD_KEY))
        except ValueError:
            field = _UNREAD
        request.specctl_field = field
    return field


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
