"""Threads of the suffix index. Compiled calls release the GIL, so that they run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["ROWS_MIN", "Workers"]

T = TypeVar("T")
ROWS_MIN = 32
"""Fewer rows for each thread cost more in handing over than they save."""
_Task = tuple[int, Callable[..., Any], tuple[int, ...]] | None
_Answer = tuple[int, Any, BaseException | None]


def _run(tasks: SimpleQueue[_Task], answers: SimpleQueue[_Answer]) -> None:
    while (task := tasks.get()) is not None:
        number, work, arguments = task
        try:
            answers.put((number, work(*arguments), None))
        except BaseException as error:  # handed to the caller
            answers.put((number, None, error))


class Workers:
    """``count`` threads, the caller's own among them; started when first needed.

    A queue of the standard library hands over in 5 us; an executor takes 25 us, a quarter of a step.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._tasks: SimpleQueue[_Task] = SimpleQueue()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.is_busy = False
        """Whether something was started beside and has not been waited for."""

    def split(self, rows: int, work: Callable[[int, int, int], T]) -> list[T]:
        """work(thread, first, last) over rows in as many parts as pay; returns their results."""
        parts = max(1, min(self.count, rows // ROWS_MIN))
        ends = [rows * part // parts for part in range(parts + 1)]
        self.wait()
        for part in range(1, parts):
            self._hand_over(part, work, (part, ends[part], ends[part + 1]))
        try:
            results: list[Any] = [work(0, 0, ends[1]), *[None] * (parts - 1)]
        finally:
            answers = [self._answers.get() for _ in range(1, parts)]
        for part, result, error in answers:
            if error is not None:
                raise error
            results[part] = result
        return results

    def beside(self, work: Callable[[], None]) -> None:
        """Run while the caller goes on, until it waits."""
        self.wait()
        self._hand_over(0, work, ())
        self.is_busy = True

    def wait(self) -> None:
        """For what runs beside; raises what it raised."""
        if self.is_busy:
            self.is_busy = False
            _, _, error = self._answers.get()
            if error is not None:
                raise error

    def close(self) -> None:
        self.wait()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _hand_over(self, number: int, work: Callable[..., Any], arguments: tuple[int, ...]) -> None:
        if not self._threads:
            for _ in range(max(1, self.count - 1)):
                thread = threading.Thread(
                    target=_run, args=(self._tasks, self._answers), name="specctl-suffix", daemon=True
                )
                thread.start()
                self._threads.append(thread)
        self._tasks.put((number, work, arguments))
