"""One finding: what is wrong, how it was seen, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Finding", "Severity", "error", "note", "warning", "worst"]


class Severity(StrEnum):
    ERROR = "error"
    """It does not start, does not speculate, or is wrong."""
    WARNING = "warning"
    """It runs, and is slower than it could be or will fail later."""
    NOTE = "note"
    """Worth knowing; a healthy server may have some."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``code``: stable, for scripts."""

    code: str
    severity: Severity
    what: str
    seen: str
    do: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def error(code: str, what: str, seen: str, do: str) -> Finding:
    return Finding(code, Severity.ERROR, what, seen, do)


def warning(code: str, what: str, seen: str, do: str) -> Finding:
    return Finding(code, Severity.WARNING, what, seen, do)


def note(code: str, what: str, seen: str, do: str) -> Finding:
    return Finding(code, Severity.NOTE, what, seen, do)


def worst(findings: list[Finding]) -> Severity | None:
    """None: there are no findings."""
    order = list(Severity)
    return min((finding.severity for finding in findings), key=order.index, default=None)
