"""Threads of the suffix index. Compiled calls release the GIL, so that they run at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["Workers"]

T = TypeVar("T")
ROWS_MIN = 32
"""Fewer rows for each thread cost more in handing over than they save."""


class Workers:
    """``count`` threads, the caller's own among them; started when first needed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        self._beside: Future[None] | None = None

    def split(self, rows: int, work: Callable[[int, int, int], T]) -> list[T]:
        """work(thread, first, last) over rows in as many parts as pay; returns their results."""
        parts = max(1, min(self.count, rows // ROWS_MIN))
        if parts == 1:
            return [work(0, 0, rows)]
        ends = [rows * part // parts for part in range(parts + 1)]
        others = [self._started().submit(work, part, ends[part], ends[part + 1]) for part in range(1, parts)]
        return [work(0, 0, ends[1]), *(other.result() for other in others)]

    def beside(self, work: Callable[[], None]) -> None:
        """Run while the caller goes on, until it waits."""
        self.wait()
        self._beside = self._started().submit(work)

    def wait(self) -> None:
        """For what runs beside; raises what it raised."""
        if self._beside is not None:
            running, self._beside = self._beside, None
            running.result()

    def close(self) -> None:
        self.wait()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max(1, self.count - 1), "specctl-suffix")
        return self._pool
