"""Files of this machine: regular ones only, within a bound, and never waited for by the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Generic, TypeVar

from specctl.errors import PolicyError, SpecctlError
from specctl.plain_text import plain_text

__all__ = [
    "WatchedFile",
    "append_lines",
    "in_thread",
    "is_file",
    "open_lines",
    "open_secret",
    "read_file",
]

logger = logging.getLogger(__name__)

READING_PATIENCE_S = 1.0

_Result = TypeVar("_Result")


def read_file(path: Path, error_type: type[SpecctlError], max_bytes: int) -> bytes:
    """Raises ``error_type`` for what cannot be read, is no regular file, or is over ``max_bytes``.

    A FIFO or a device is refused without being waited for.
    """
    name = plain_text(str(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise error_type(f"{name}: expected a regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                raw = file.read(max_bytes + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise error_type(f"{name}: {getattr(error, 'strerror', None) or error}") from error
    if len(raw) > max_bytes:
        raise error_type(f"{name}: over {max_bytes} bytes")
    return raw


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Differs after a change of the file; None where it cannot be asked for."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _resolved(path: Path) -> Path:
    """Without links; as it is where that cannot be asked for."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return path.absolute()


def open_secret(path: Path) -> str | None:
    """A warning where every user of this machine can read or change the file; else None."""
    with contextlib.suppress(OSError, ValueError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            return f"{plain_text(str(path))}: every user of this machine can read or change it ({mode:04o})"
    return None


def open_lines(path: Path) -> int:
    """A descriptor for ``append_lines``. A new file has mode 0640. Raises OSError."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    return os.open(path, flags, 0o640)


def append_lines(descriptor: int, data: bytes) -> None:
    """With one write, on a new line whatever stands there before.

    Raises OSError when not all was written; a part may stand there then.
    """
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size:
        is_torn = os.pread(descriptor, 1, status.st_size - 1) != b"\n"
        data = b"\n" + data if is_torn else data
    written = os.write(descriptor, data)
    if written != len(data):
        raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were taken")


def is_file(path: Path) -> bool:
    """Whether something is there; False for a path that cannot be one, such as a name of 300 characters."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


async def in_thread(function: Callable[[], _Result], name: str) -> _Result:
    """What ``function`` returns or raises, from a thread of its own.

    The event loop's own threads are waited for at exit; a slow disk or resolver may take minutes.
    """
    answer: Future[_Result] = Future()
    # Once it runs it cannot be cancelled: who waits may go, and its result is dropped.
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            # Also what ends a thread: who waits must not wait for ever.
            answer.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(answer)


class WatchedFile(Generic[_Result]):
    """What a file holds, read again when it changes. A wrong change is refused; the last good one stays."""

    def __init__(self, path: Path, load: Callable[[Path], _Result], what: str) -> None:
        """Raises what ``load`` raises where the file is wrong at the start. ``what``: its name in the log."""
        self.path = path
        self.refusal: str | None = None
        self._load, self._what = load, what
        self._stamp = _stamp(path)
        self.value = load(path)
        self.resolved = _resolved(path)
        """Without links, when it was read last."""
        self._reading: asyncio.Future[_Result | SpecctlError | None] | None = None
        self._is_starved = False

    async def refresh(self) -> bool:
        """Whether another one was taken. Logs a refusal once for each wrong state of the file. It is read in
        a thread, so that a slow disk does not hold up the event loop: a later call takes what it brings."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(in_thread(self._read, f"{self._what} {self.path.name}"))
        done, _ = await asyncio.wait({self._reading}, timeout=READING_PATIENCE_S)
        if not done:
            return False
        reading, self._reading = self._reading, None
        try:
            read = reading.result()
        except RuntimeError as error:
            if not self._is_starved:
                logger.error("%s: cannot be read now, the last good one stays: %s", self.path, error)
            self._is_starved = True
            return False
        self._is_starved = False
        return self._take(read)

    def _read(self) -> _Result | SpecctlError | None:
        """None: the file is as it was. Changes nothing that is in force."""
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        self.resolved = _resolved(self.path)
        try:
            return self._load(self.path)
        except SpecctlError as error:
            if isinstance(error.__cause__, OSError | PolicyError):
                # The system failed, or a file that this one names: it may be good without a change of it.
                self._stamp = None
            return error
        except Exception as error:
            logger.exception("%s: a bug in reading it", self.path)
            return SpecctlError(f"{plain_text(str(self.path))}: cannot be used ({type(error).__name__})")

    def _take(self, read: _Result | SpecctlError | None) -> bool:
        if isinstance(read, SpecctlError):
            is_told = self._stamp is None and self.refusal == str(read)
            self.refusal = str(read)
            if not is_told:
                logger.error("%s refused, the last good one stays:\n%s", self._what, read)
        if read is None or isinstance(read, SpecctlError):
            return False
        self.refusal = None
        before, self.value = self.value, read
        if read != before:
            logger.info("%s: new %s taken", self.path, self._what)
        return read != before
