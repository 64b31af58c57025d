"""Nothing of a plugin's own may hurt an engine's step: every entry of ours runs under this guard."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["FAILURES_MAX", "GUARD", "Guard"]

FAILURES_MAX = 3
"""Failures of one process after which its method rests at 0 drafts."""

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("specctl")

_FAILED: object = object()


class Guard:
    """Counts what our code raises, by entry.

    The first failure of an entry is logged with its traceback. A failed call costs that step its drafts:
    the caller gets its default, and goes on with what the engine would do. After FAILURES_MAX failures the
    method rests: ``is_resting`` stays true until the process ends, and callers draft nothing.
    """

    def __init__(self, log: logging.Logger = logger) -> None:
        self.log = log
        """The plugin sets its own at start: an engine shows its own names only."""
        self.failures: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def is_resting(self) -> bool:
        return bool(self.failures) and self.failures.total() >= FAILURES_MAX

    def call(self, entry: str, default: T, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``function``'s answer, or ``default`` where it raised. Exceptions that end a process pass."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self.failed(entry, error)
            return default

    def ran(self, entry: str, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether ``function`` came to its end."""
        return self.call(entry, _FAILED, function, *args, **kwargs) is not _FAILED

    def failed(self, entry: str, error: Exception) -> None:
        """Count what an entry raised; for code that cannot be run by ``call``."""
        with self._lock:
            self.failures[entry] += 1
            is_first = self.failures[entry] == 1
            rests_now = self.failures.total() == FAILURES_MAX
        if is_first:
            self.log.error("specctl: %s failed; this step goes on without it", entry, exc_info=error)
        if rests_now:
            self.log.error("specctl: %d failures; from now on nothing is drafted", FAILURES_MAX)


GUARD = Guard()
"""Of this process."""
