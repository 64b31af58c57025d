"""Which traffic class a request is of: worked out when it is first scheduled, its context looked at again now
and then. What is counted by request is counted here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from specctl.contract.classes import context_bucket
from specctl.engine.acceptance_groups import AcceptanceGroups
from specctl.engine.class_counters import ClassCounters
from specctl.engine.request_classes import ClassKey, valid_kind

__all__ = ["RequestClasses", "key_of"]

_NUMBER = attrgetter("specctl_class")
_NAMESPACE_CHARACTERS_MAX = 160
_LOOKED_AT = 4
"""Requests of a counted step whose context is looked at again: with 256, each after some ten seconds."""


def key_of(namespace: str, kind: object, context_tokens: int) -> ClassKey:
    """``kind``: as the request named it; anything but a legal word is none."""
    if len(namespace) > _NAMESPACE_CHARACTERS_MAX:
        namespace = hashlib.blake2b(namespace.encode(), digest_size=16).hexdigest()
    return ClassKey(namespace, valid_kind(kind), context_bucket(context_tokens))


class RequestClasses:
    """Keeps a class's number and key on the request itself, so that they end with the request.

    key_of and context_of: an engine's request's class, and its tokens so far.
    """

    def __init__(
        self,
        num_speculative_tokens_max: int,
        key_of: Callable[[Any], ClassKey],
        context_of: Callable[[Any], int],
    ) -> None:
        self._key_of, self._context_of = key_of, context_of
        self.counters = ClassCounters(num_speculative_tokens_max)
        self.groups = AcceptanceGroups(num_speculative_tokens_max)
        self._turn = 0

    def arrived(self, request: Any, now_s: float) -> None:
        key = self._key_of(request)
        request.specctl_class = self.counters.number_of(key, now_s)
        request.specctl_key = key
        self.groups.arrived(request)

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
        self.groups.add(num_speculative_tokens, requests, accepted)
        self._turn = 0 if self._turn >= len(requests) else self._turn
        for request in requests[self._turn : self._turn + _LOOKED_AT]:
            if self._context_of(request) > request.specctl_key.context_to_tokens:
                self.arrived(request, now_s)
        self._turn += _LOOKED_AT

    def _numbers(self, requests: Sequence[Any], now_s: float) -> list[int]:
        try:
            return list(map(_NUMBER, requests))
        except AttributeError:
            # A way into the batch that announced no new request: not worth losing the table for.
            for request in requests:
                if not hasattr(request, "specctl_class"):
                    self.arrived(request, now_s)
            return list(map(_NUMBER, requests))
