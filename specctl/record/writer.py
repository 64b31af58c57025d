"""Appends lines to a telemetry log, each one flushed, within a bound on the file's size."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel

from specctl.errors import SpecctlError
from specctl.local_file import append_lines, open_lines
from specctl.record.lines import FORMAT

__all__ = ["LogWriter"]

# Kept free for the last line.
END_BYTES = 256
_HEAD_BYTES = 256


class LogWriter:
    """Use as a context manager. An existing log goes on; any other file is refused, and nothing is changed.

    A killed recorder leaves at most one torn line. It stays, and what follows begins on a new line: readers
    leave out what stands before a header and cannot be read.
    """

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        """Raises SpecctlError when the file cannot be written, is no log, or is full."""
        self._path = path
        self._max_bytes = max_bytes
        try:
            self.size_bytes = path.stat().st_size if path.exists() else 0
            if self.size_bytes:
                self._check_log()
            self._descriptor = open_lines(path)
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, line: BaseModel, *, is_last: bool = False) -> bool:
        """Whether the line was written: False where it would take the log over its bound.

        Raises SpecctlError."""
        data = line.model_dump_json().encode() + b"\n"
        spare = 0 if is_last else END_BYTES
        if self.size_bytes + len(data) > self._max_bytes - spare:
            return False
        try:
            # Straight to the operating system: nothing of a written line is lost with this process.
            append_lines(self._descriptor, data)
        except OSError as error:
            raise self._failed(error) from error
        self.size_bytes += len(data)
        return True

    def _check_log(self) -> None:
        """Raises SpecctlError for a file that is no log."""
        with self._path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if f'"format":"{FORMAT}"'.encode() not in head:
            raise SpecctlError(f"{self._path}: expected no file or a telemetry log, got another file")

    def _failed(self, error: OSError) -> SpecctlError:
        return SpecctlError(f"{self._path}: cannot be written: {error.strerror or error}")
