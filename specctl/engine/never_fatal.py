"""What steers an engine may not bring it down."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from specctl.engine.guard import GUARD

__all__ = ["never_fatal"]


class _Steers(Protocol):
    log: logging.Logger
    is_active: bool
    steering_s: float


def never_fatal(words: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For methods that an engine's step calls: the guard counts an error, ``words`` are logged, and
    steering ends.

    What the method takes is added to ``steering_s``.
    """

    def guarding(method: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(method)
        def guarded(self: _Steers, *args: Any) -> None:
            if not self.is_active:
                return
            started_s = time.perf_counter()
            try:
                method(self, *args)
                self.steering_s += time.perf_counter() - started_s
            except Exception as error:
                GUARD.failed(method.__name__, error)
                self.log.error(words)
                self.is_active = False

        return guarded

    return guarding
