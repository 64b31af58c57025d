"""All findings of one examination, in words and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any

import click

from specctl.doctor.finding import Finding, Severity, worst

__all__ = ["Report"]

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_WIDTH = 100


@dataclass(slots=True)
class Report:
    """``checked``: what was looked at; ``skipped``: what could not be, and why."""

    subject: str
    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, *findings: Finding | None) -> None:
        self.findings += [finding for finding in findings if finding is not None]

    @property
    def is_healthy(self) -> bool:
        """Notes do not count."""
        return worst(self.findings) in (None, Severity.NOTE)

    def exit_code(self, *, is_strict: bool) -> int:
        """1 where there is an error; with ``is_strict`` also for a warning."""
        found = worst(self.findings)
        return int(found is Severity.ERROR or (is_strict and found is Severity.WARNING))

    def as_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "healthy": self.is_healthy,
            "findings": [finding.as_json() for finding in self._sorted()],
            "checked": self.checked,
            "skipped": self.skipped,
        }

    def lines(self) -> list[str]:
        order = f"{self.subject}: " + ("nothing is wrong" if self.is_healthy else self._counts())
        lines = [click.style(order, bold=True)]
        for finding in self._sorted():
            lines += ["", _title(finding), *_folded("seen", finding.seen), *_folded("do", finding.do)]
        if self.checked or self.skipped:
            lines.append("")
        lines += _folded("checked", ", ".join(self.checked)) if self.checked else []
        for words in self.skipped:
            lines += _folded("skipped", words)
        return lines

    def _sorted(self) -> list[Finding]:
        order = list(Severity)
        return sorted(self.findings, key=lambda finding: order.index(finding.severity))

    def _counts(self) -> str:
        severities = [finding.severity for finding in self.findings]
        counts = [(severities.count(severity), severity.value) for severity in Severity]
        return ", ".join(f"{count} {name}{'s' * (count > 1)}" for count, name in counts if count)


def _title(finding: Finding) -> str:
    severity = click.style(f"{finding.severity.value:<8}", fg=_COLOURS[finding.severity], bold=True)
    return f"{severity} {finding.what}  [{finding.code}]"


def _folded(name: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        width=_WIDTH,
        initial_indent=f"  {name:<8} ",
        subsequent_indent=" " * 11,
        break_long_words=False,
        break_on_hyphens=False,
    )
