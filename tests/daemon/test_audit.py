"""The log of every change: complete, and on a disk that moves under it."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.clock import ManualClock
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine, Traffic
from fakes.rig import Rig, records

from specctl.contract.table import AppliedTable, TablePut, TableRow
from specctl.core.explain import table_changes
from specctl.core.messages import Reason
from specctl.daemon.audit import AuditLog

GOODPUT = "kind: goodput\n"
POLICIES = [
    GOODPUT,
    "kind: fixed\nnum_speculative_tokens: 5\n",
    f"{GOODPUT}classes: [{{kind: code, max_num_speculative_tokens: 1}}]\n",
    "kind: thresholds\nthresholds:\n"
    + "".join(
        f"  - {{decode_batch_to: {last}, num_speculative_tokens: {number}}}\n"
        for last, number in ((1, 8), (2, 7), (3, 6), (4, 5), (6, 4), ("null", 3))
    ),
    f"{GOODPUT}on_stop: 'off'\n",
]


class Watched(FakeEngine):
    """Keeps the table before and after each PUT."""

    swaps: list[tuple[AppliedTable, AppliedTable]]

    def put(self, body: bytes) -> tuple[int, dict[str, Any]]:
        before = self.live.read()
        status, answer = super().put(body)
        if status == 200:
            self.swaps.append((before, self.live.read()))
        return status, answer


@pytest.mark.parametrize("policy", POLICIES)
def test_every_difference_between_two_tables_is_in_the_audit_with_a_reason(
    policy: str, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.jsonl"
    swaps: list[tuple[AppliedTable, AppliedTable]] = []

    async def course() -> None:
        async with Rig(engine, policy=policy, audit=audit) as rig:
            for batch, traffic in ((1, RANDOM_TEXT), (1, COPYING), (4, COPYING), (6, RANDOM_TEXT)):
                engine.traffic = Traffic(batch, traffic.accept_at, prefill_every=7, prefill_tokens=30)
                await rig.run(12)
            rig.set_policy("kind: fixed\nnum_speculative_tokens: 1\n")
            await rig.run(3)
            rig.set_policy(policy)
            await rig.run(10)
            operator = (TableRow(decode_batch_from=1, num_speculative_tokens=3),)
            engine.operator_puts(TablePut(base_version=0, rows=operator, owner="operator"))
            await rig.run(15)
            await rig.stop()

    with Watched(start_tokens=2, class_limits_max=4) as engine:
        engine.swaps = swaps
        asyncio.run(course())
    written = records(audit, "change", "stopped")
    found = {one["version"]: one for one in written if one["event"] == "change" or one["changes"]}
    reasons = {reason.value for reason in Reason}
    for before, after in swaps:
        differs = table_changes(before.rows, after.rows) or before.class_limits != after.class_limits
        assert bool(differs) == (after.version in found), (before, after)
        if differs and found[after.version]["event"] == "change":
            record = found[after.version]
            assert record["reason"] in reasons
            assert record["explanation"]
            assert list(table_changes(before.rows, after.rows)) == [
                words for words in record["changes"] if not words.startswith("rules for")
            ]
            assert record["class_limits"] == [one.model_dump() for one in after.class_limits]
    assert len([one for one in swaps if one[1].version in found]) >= 4


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


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """A disk that takes files of ``size`` bytes at most, and the part of a write that fits."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_tears_no_later_record_and_what_is_lost_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    lost_records: list[None] = []
    audit = AuditLog(path, ManualClock(), lambda: lost_records.append(None))
    audit.write("change", "t", {"n": 0})
    with room_for(path.stat().st_size + 20):
        for n in (1, 2, 3):
            audit.write("change", "t", {"n": n})
    audit.write("change", "t", {"n": 4})
    first, torn, lost, last = path.read_text().splitlines()
    assert json.loads(first)["n"] == 0
    assert len(torn) == 20
    assert (json.loads(lost)["event"], json.loads(lost)["records"]) == ("lost", 3)
    assert len(lost_records) == 3
    assert json.loads(last)["n"] == 4
    assert caplog.text.count("audit log") == 2
    assert "3 record(s) are lost" in caplog.text


def test_a_record_follows_the_torn_one_of_a_killed_daemon(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"when": "torn')
    AuditLog(path, ManualClock()).write("change", "t", {"n": 1})
    assert json.loads(path.read_text().splitlines()[1])["n"] == 1


def test_an_audit_log_is_for_its_owner_and_group_from_the_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    AuditLog(path, ManualClock())
    assert path.stat().st_mode & 0o777 & ~0o640 == 0
