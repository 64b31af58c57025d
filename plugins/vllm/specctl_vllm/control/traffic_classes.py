"""A request's traffic class, by the names that it goes by in vLLM."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from specctl.engine import traffic_classes
from specctl.engine.request_classes import KIND_KEY, ClassKey, valid_kind
from specctl_vllm.control.namespaces import namespace_of

__all__ = ["RequestClasses", "class_key", "key_of", "kind_of"]


def kind_of(sampling_params: Any) -> str:
    """What the request names in ``vllm_xargs`` (HTTP) or ``extra_args`` (Python) as its kind; "" else."""
    extra = getattr(sampling_params, "extra_args", None)
    return valid_kind(extra.get(KIND_KEY)) if extra else ""


def class_key(request: Any) -> ClassKey:
    tokens = max(request.num_computed_tokens, request.num_prompt_tokens)
    namespace = namespace_of(request)
    return traffic_classes.key_of(namespace, kind_of(request.sampling_params), tokens)


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
