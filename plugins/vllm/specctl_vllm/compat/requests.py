"""What a request says of itself, where it comes in: in the process with the HTTP server."""

from __future__ import annotations

import functools
from typing import Any

from vllm.exceptions import VLLMValidationError

from specctl.engine.request_field import TOOLS_KEY, check_extras

__all__ = ["wrap_to_sampling_params", "wrap_verify_args"]


def wrap_verify_args(original: Any) -> Any:
    """A field that is wrong fails like any parameter of vLLM's that is: HTTP 400 for that request."""

    @functools.wraps(original)
    def _verify_args(self: Any) -> None:
        original(self)
        try:
            check_extras(self.extra_args)
        except ValueError as error:
            raise VLLMValidationError(str(error), parameter="vllm_xargs") from error

    return _verify_args


def wrap_to_sampling_params(original: Any) -> Any:
    @functools.wraps(original)
    def to_sampling_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        sampling_params = original(self, *args, **kwargs)
        if self.tools and self.tool_choice != "none":
            sampling_params.extra_args = {**(sampling_params.extra_args or {}), TOOLS_KEY: 1}
        return sampling_params

    return to_sampling_params
