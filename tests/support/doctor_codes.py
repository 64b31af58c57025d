"""What ``specctl doctor`` says of a real server or of the command that starts it."""

from __future__ import annotations

import json

from click.testing import CliRunner

from specctl.doctor.command import doctor

__all__ = ["doctor_codes", "doctor_codes_of_launch"]


def doctor_codes(url: str, *more: str) -> set[str]:
    """Of a running server, without notes: tests leave a table without a lease, which is one."""
    return _codes(url, "--window", "1", *more)


def doctor_codes_of_launch(*words: str) -> set[str]:
    return _codes("--cpu", *words)


def _codes(*words: str) -> set[str]:
    done = CliRunner().invoke(doctor, ["--json", *words], catch_exceptions=False)
    findings = json.loads(done.stdout)["findings"]
    return {finding["code"] for finding in findings if finding["severity"] != "note"}
