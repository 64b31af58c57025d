"""The log of every change, on a disk that moves under it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.clock import ManualClock

from specctl.controller.audit import AuditLog


def test_an_audit_log_that_was_rotated_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path, ManualClock())
    audit.write("change", "t", {"a": 1})
    path.rename(tmp_path / "audit.jsonl.1")
    audit.write("change", "t", {"a": 2})
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [2]


def test_an_audit_log_on_a_failing_disk_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    audit = AuditLog(folder / "audit.jsonl", ManualClock())
    (folder / "audit.jsonl").unlink()
    folder.rmdir()
    audit.write("change", "t", {})
    audit.write("change", "t", {})
    assert caplog.text.count("audit log") == 1
