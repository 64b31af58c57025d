"""Reads the lines of a telemetry log. What a killed recorder leaves is skipped; other damage refuses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from specctl.contract.telemetry import Telemetry, TelemetryCell
from specctl.engine_api.deltas import CellKey, cell_key
from specctl.errors import SimulationInputError
from specctl.json_bounds import check_json
from specctl.plain_text import plain_value
from specctl.record.lines import FORMAT, FORMAT_VERSION, Header, Line

__all__ = ["Cells", "is_log", "read_lines"]

LINE_MAX_BYTES = 16 * 1024 * 1024
_HEAD_BYTES = 256
_KINDS = ("header", "capabilities", "reading", "unreachable", "end")
_LINE: TypeAdapter[Line] = TypeAdapter(Line)


class Cells:
    """Those of a recording so far: a reading holds only the cells that changed."""

    def __init__(self) -> None:
        self._boot_id: str | None = None
        self._known: dict[CellKey, TelemetryCell] = {}

    def whole(self, telemetry: Telemetry | None) -> Telemetry | None:
        """The reading's telemetry with all cells."""
        if telemetry is None:
            return None
        if telemetry.boot_id != self._boot_id:
            self._boot_id, self._known = telemetry.boot_id, {}
        self._known |= {cell_key(cell): cell for cell in telemetry.cells}
        return telemetry.model_copy(update={"cells": tuple(self._known.values())})


def is_log(path: Path) -> bool:
    """Whether a file begins as a telemetry log does. Raises SimulationInputError."""
    try:
        with path.open("rb") as file:
            return FORMAT.encode() in file.read(_HEAD_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error


def read_lines(path: Path, skipped: Counter[str]) -> Iterator[Line]:
    """Every line of known kind, in order; ``skipped`` counts what was left out, by reason.

    Raises SimulationInputError with file, line, expected and got: for an empty file, another file, another
    version, and a line that is wrong where no recorder was killed.
    """
    torn: str | None = None
    has_header = False
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(iter(lambda: file.readline(LINE_MAX_BYTES), b""), 1):
                place = f"{path}:{number}"
                parsed = _object(raw)
                is_header = parsed is not None and parsed.get("kind") == "header"
                if torn is not None and not is_header:
                    raise SimulationInputError(f"{torn}: expected a JSON object, got a torn line")
                if torn is not None:
                    skipped["torn line"] += 1
                torn = place if parsed is None else None
                if parsed is None:
                    continue
                if not has_header and not is_header:
                    raise SimulationInputError(f"{place}: expected a header, got {raw[:60]!r}")
                has_header = True
                if parsed.get("kind") not in _KINDS:
                    skipped["line of an unknown kind"] += 1
                    continue
                yield _line(parsed, place)
    except OSError as error:
        raise _unreadable(path, error) from error
    if not has_header:
        raise SimulationInputError(f"{path}: expected a telemetry log, got no whole line")
    if torn is not None:
        skipped["torn line"] += 1


def _object(raw: bytes) -> dict[str, Any] | None:
    """None for a line without its end, and for what is no JSON object."""
    if not raw.endswith(b"\n") or len(raw) >= LINE_MAX_BYTES:
        return None
    try:
        check_json(raw)
        parsed = pydantic_core.from_json(raw)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _line(parsed: dict[str, Any], place: str) -> Line:
    try:
        line = _LINE.validate_python(parsed)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"][1:])) or "line"
        raise SimulationInputError(
            f"{place}: {where}: {first['msg']}, got {plain_value(first['input'])}"
        ) from error
    if isinstance(line, Header):
        if line.version != FORMAT_VERSION:
            raise SimulationInputError(f"{place}: version: expected {FORMAT_VERSION}, got {line.version}")
        _check_utc(line.utc, place)
    return line


def _check_utc(text: str, place: str) -> None:
    try:
        has_zone = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        has_zone = False
    if not has_zone:
        raise SimulationInputError(f"{place}: utc: expected ISO 8601 with a zone, got {text[:80]!r}")


def _unreadable(path: Path, error: OSError) -> SimulationInputError:
    return SimulationInputError(f"{path}: cannot be read: {error.strerror or error}")
