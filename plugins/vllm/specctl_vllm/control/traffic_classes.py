"""Which traffic class a request is of: worked out when it is first scheduled, its context looked at again now
and then."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from specctl.contract.classes import KIND_KEY, ClassKey, context_bucket, valid_kind
from specctl.engine.class_counters import ClassCounters
from specctl_vllm.control.namespaces import namespace_of

__all__ = ["RequestClasses", "class_key", "key_of", "kind_of"]

_NUMBER = attrgetter("specctl_class")
_NAMESPACE_CHARACTERS_MAX = 160
_LOOKED_AT = 4
"""Requests of a counted step whose context is looked at again: with 256, each after some ten seconds."""


def kind_of(sampling_params: Any) -> str:
    """What the request names in ``vllm_xargs`` (HTTP) or ``extra_args`` (Python) as its kind; "" else."""
    told = getattr(sampling_params, "extra_args", None)
    return valid_kind(told.get(KIND_KEY)) if told else ""


def class_key(request: Any) -> ClassKey:
    namespace = namespace_of(request.lora_request, request.cache_salt)
    if len(namespace) > _NAMESPACE_CHARACTERS_MAX:
        namespace = hashlib.blake2b(namespace.encode(), digest_size=16).hexdigest()
    tokens = max(request.num_computed_tokens, request.num_prompt_tokens)
    return ClassKey(namespace, kind_of(request.sampling_params), context_bucket(tokens))


def key_of(request: Any) -> ClassKey:
    """As it was last looked at."""
    key: ClassKey | None = getattr(request, "specctl_key", None)
    if key is None:
        # A way into the batch that told no new request.
        key = request.specctl_key = class_key(request)
    return key


class RequestClasses:
    """Keeps a class's number on the request itself, so that it ends with the request."""

    def __init__(self, num_speculative_tokens_max: int) -> None:
        self.counters = ClassCounters(num_speculative_tokens_max)
        self._turn = 0

    def arrived(self, request: Any, now_s: float) -> None:
        key = class_key(request)
        request.specctl_class = self.counters.number_of(key, now_s)
        request.specctl_key = key

    def count(
        self,
        num_speculative_tokens: int,
        requests: Sequence[Any],
        drafted: Sequence[int],
        accepted: Sequence[int],
        now_s: float,
    ) -> None:
        """A step with its decoding requests."""
        if not requests:
            return
        self.counters.add(num_speculative_tokens, self._numbers(requests, now_s), drafted, accepted, now_s)
        self._turn = 0 if self._turn >= len(requests) else self._turn
        for request in requests[self._turn : self._turn + _LOOKED_AT]:
            if request.num_computed_tokens > request.specctl_key.context_to_tokens:
                self.arrived(request, now_s)
        self._turn += _LOOKED_AT

    def _numbers(self, requests: Sequence[Any], now_s: float) -> list[int]:
        try:
            return list(map(_NUMBER, requests))
        except AttributeError:
            # A way into the batch that told no new request: not worth losing the table for.
            for request in requests:
                if not hasattr(request, "specctl_class"):
                    self.arrived(request, now_s)
            return list(map(_NUMBER, requests))
