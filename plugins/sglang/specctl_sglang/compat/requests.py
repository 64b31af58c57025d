"""What a request says of itself, where it comes in: in the process with the HTTP server."""

from __future__ import annotations

import functools
from typing import Any

from specctl.engine.request_field import TOOLS_KEY, check_extras

__all__ = ["wrap_to_sampling_params", "wrap_verify"]


def wrap_verify(original: Any) -> Any:
    """A field that is wrong fails like any parameter of SGLang's that is: HTTP 400 for that request."""

    @functools.wraps(original)
    def verify(sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        check_extras(sampling_params.custom_params)
        return original(sampling_params, *args, **kwargs)

    return verify


def wrap_to_sampling_params(original: Any) -> Any:
    @functools.wraps(original)
    def to_sampling_params(asked: Any, *args: Any, **kwargs: Any) -> Any:
        params = original(asked, *args, **kwargs)
        if asked.tools and asked.tool_choice != "none":
            params["custom_params"] = {**(params.get("custom_params") or {}), TOOLS_KEY: True}
        return params

    return to_sampling_params
