"""A request's traffic class, by the names that it goes by in vLLM."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from specctl.engine import traffic_classes
from specctl.engine.request_classes import ClassKey
from specctl_vllm.control.namespaces import namespace_of
from specctl_vllm.control.request_fields import request_kind

__all__ = ["RequestClasses", "class_key", "key_of"]


def class_key(request: Any) -> ClassKey:
    tokens = max(request.num_computed_tokens, request.num_prompt_tokens)
    return traffic_classes.key_of(namespace_of(request), request_kind(request), tokens)


def key_of(request: Any) -> ClassKey:
    """As it was last looked at."""
    key: ClassKey | None = getattr(request, "specctl_key", None)
    if key is None:
        # A way into the batch that announced no new request.
        key = request.specctl_key = class_key(request)
    return key


class RequestClasses(traffic_classes.RequestClasses):
    def __init__(self, num_speculative_tokens_max: int) -> None:
        super().__init__(num_speculative_tokens_max, class_key, attrgetter("num_computed_tokens"))
