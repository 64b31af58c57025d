"""``specctl autotune`` beside a real server under traffic, and what must hold whatever it decides."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support.engine_control import Control, wait_for

from specctl.contract.setting import KNOBS
from specctl.core.messages import Reason
from testing.autotune import autotune
from testing.servers import free_port

__all__ = [
    "POLICY",
    "DaemonRun",
    "assert_changes_are_audited",
    "assert_daemon_is_harmless",
    "assert_start_table_is_back",
    "decision_reasons",
    "run_daemon",
    "setting_at",
    "traffic",
    "wait_for_polls",
    "write_policy",
]

POLICY: dict[str, Any] = {
    "kind": "goodput",
    "name": "tests",
    "poll_interval_s": 0.25,
    "lease_s": 20.0,
    "guard_rails": {"dwell_s": 0.5},
    "sampling": {"share_max_ratio": 0.05},
}
"""Decides within seconds, also on a CPU, where a step takes 10 ms and more."""
ENGINES = ("on vllm", "on sglang")
DECISIONS = 5
"""At least so many are made; a busy machine may need longer for them."""


@dataclass
class DaemonRun:
    """``tables``: before the daemon, each version that was seen, after its stop. ``outputs``: greedy tokens
    by number of the prompt, as often as it was answered."""

    tables: list[dict[str, Any]]
    outputs: dict[int, list[list[int]]]
    records: list[dict[str, Any]] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    log: str = ""

    @property
    def changes(self) -> list[dict[str, Any]]:
        return [record for record in self.records if record["event"] == "change"]


def write_policy(folder: Path, **more: Any) -> Path:
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump({**POLICY, **more}, sort_keys=False), encoding="utf-8")
    return path


def run_daemon(
    control: Control,
    folder: Path,
    prompts: Sequence[str],
    *,
    seconds: float = 12.0,
    concurrency: int = 2,
    max_tokens: int = 32,
    until: Callable[[DaemonRun], object] = lambda found: True,
    token: str | None = None,
    ask: Callable[[str], list[int]] | None = None,
    **policy: Any,
) -> DaemonRun:
    """From its start to its clean stop, under traffic, for so long after its first poll and until each prompt
    was answered and ``DECISIONS`` were made.

    Args:
        until: and until this holds of what was found: on a busy machine 12 s hold few steps.
        token: bearer token with the control scope.
        ask: greedy tokens of a prompt; without it the control's own completion.
        policy: in the place of what ``POLICY`` says.
    """
    port, found = free_port(), DaemonRun([control.get("table")], {})
    more = ["--metrics-port", str(port)]
    if token is not None:
        (folder / "token").write_text(token)
        more += ["--token-file", str(folder / "token")]
    answer = ask or (lambda prompt: control.complete(prompt, max_tokens))
    path = write_policy(folder, **policy)
    with autotune(control.server.url, folder, policy=str(path), more=more) as process:
        wait_for_polls(folder, 1)
        with traffic(answer, prompts, concurrency) as outputs:
            ends_s = time.monotonic() + seconds
            while (
                time.monotonic() < ends_s
                or len(outputs) < len(prompts)
                or decisions_made(port) < DECISIONS
                or not until(found)
            ):
                assert process.poll() is None, _log(folder)
                assert time.monotonic() < ends_s + 120, "the server answers too slowly\n" + _log(folder)
                _keep(found.tables, control.get("table"))
                found.records = _records(folder)
                time.sleep(0.03)
        found.reasons = decision_reasons(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, _log(folder)
    found.outputs = outputs
    _keep(found.tables, control.get("table"))
    found.records = _records(folder)
    found.log = _log(folder)
    return found


def _keep(tables: list[dict[str, Any]], table: dict[str, Any]) -> None:
    if table["version"] != tables[-1]["version"]:
        tables.append(table)


def _records(folder: Path) -> list[dict[str, Any]]:
    """Of the audit log, whole lines."""
    audit = folder / "audit.jsonl"
    lines = audit.read_text(encoding="utf-8").splitlines(keepends=True) if audit.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _log(folder: Path) -> str:
    return (folder / "autotune.log").read_text(encoding="utf-8")


def wait_for_polls(folder: Path, servers: int) -> None:
    """Until the daemon has seen so many servers; a busy machine takes long to start it."""
    wait_for(lambda: sum(_log(folder).count(words) for words in ENGINES) >= servers, 90)


@contextmanager
def traffic(answer: Callable[[str], list[int]], prompts: Sequence[str], concurrency: int) -> Any:
    """Prompts over and over, so many at a time; gives the outputs so far, by number of the prompt. Raises
    what a request raised."""
    done, lock, numbers = threading.Event(), threading.Lock(), count()
    outputs: dict[int, list[list[int]]] = {}

    def client() -> None:
        while not done.is_set():
            with lock:
                number = next(numbers) % len(prompts)
            output = answer(prompts[number])
            with lock:
                outputs.setdefault(number, []).append(output)

    with ThreadPoolExecutor(concurrency) as pool:
        clients = [pool.submit(client) for _ in range(concurrency)]
        try:
            yield outputs
        finally:
            done.set()
        for one in clients:
            one.result()


def decision_reasons(port: int) -> dict[str, int]:
    """Decisions so far by reason, by the daemon's own metrics."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).raise_for_status().text
    found: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "specctl_decisions_total" and sample.value:
                reason = sample.labels["reason"]
                found[reason] = found.get(reason, 0) + int(sample.value)
    return found


def decisions_made(port: int) -> int:
    """Decisions so far; none where the daemon, which shares the server's cores, does not answer in time."""
    try:
        return sum(decision_reasons(port).values())
    except httpx.TimeoutException:
        return 0


def setting_at(table: Mapping[str, Any], decode_batch: int, context_tokens: int = 0) -> dict[str, Any]:
    """The knobs of the row there, without those that are null, and the row's sample."""
    [row] = [
        row
        for row in table["rows"]
        if row["decode_batch_from"] <= decode_batch <= (row["decode_batch_to"] or decode_batch)
        and row["context_from_tokens"] <= context_tokens <= (row["context_to_tokens"] or context_tokens)
    ]
    return {knob: row[knob] for knob in KNOBS if row[knob] is not None} | {"sample": row["sample"]}


def assert_daemon_is_harmless(found: DaemonRun, reference: Sequence[list[int]]) -> None:
    """Outputs are those without drafts, nothing failed, every decision has a reason, each change is audited,
    and a clean stop puts the start table back."""
    for number, outputs in found.outputs.items():
        assert all(output == reference[number] for output in outputs), number
    for words in ("Traceback", "ERROR", "poll failed", "refuses", "unreachable"):
        assert words not in found.log, found.log
    # A machine that others use may pause for longer than an answer may take.
    refused = [record for record in found.records if record["event"] == "refused"]
    assert all("no answer within" in record["error"] for record in refused), refused
    assert set(found.reasons) <= {reason.value for reason in Reason}
    assert sum(found.reasons.values()) >= DECISIONS
    assert_changes_are_audited(found)
    assert_start_table_is_back(found)


def assert_changes_are_audited(found: DaemonRun) -> None:
    """Each record names the knobs that it moves, and each difference between two tables has a record."""
    by_version = {record["version"]: record for record in found.changes}
    for record in found.changes:
        assert record["reason"] in {reason.value for reason in Reason}
        assert record["explanation"]
        assert record["changes"]
        moved = {
            batches: [knob for knob in KNOBS if before.get(knob) != record["to"][batches].get(knob)]
            for batches, before in record["from"].items()
        }
        assert record["moved"] == {batches: knobs for batches, knobs in moved.items() if knobs}
    *under_daemon, last = found.tables
    for before, after in pairwise(under_daemon):
        if _settings(before, after) == _settings(after, before) and (
            before["class_limits"] == after["class_limits"]
        ):
            continue
        versions = range(before["version"] + 1, after["version"] + 1)
        assert any(version in by_version for version in versions), (before, after)
    for table in under_daemon[1:]:
        record = by_version.get(table["version"])
        for batches, setting in (record or {"to": {}})["to"].items():
            in_force = setting_at(table, int(batches.split("-")[0]))
            assert {knob: in_force[knob] for knob in setting} == setting
    assert last["version"] > under_daemon[-1]["version"] or len(under_daemon) == 1


def _settings(table: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    """At every corner of both tables, without samples."""
    rows = [*table["rows"], *other["rows"]]
    batches = sorted({row["decode_batch_from"] for row in rows})
    contexts = sorted({row["context_from_tokens"] for row in rows})
    found = [setting_at(table, batch, context) for batch in batches for context in contexts]
    return [{knob: value for knob, value in one.items() if knob != "sample"} for one in found]


def assert_start_table_is_back(found: DaemonRun) -> None:
    after = found.tables[-1]
    assert after["rows"] == after["start_rows"]
    assert (after["lease_s"], after["class_limits"]) == (None, [])
    assert after["owner"].startswith("autotune")
    assert found.records[-1]["event"] == "stopped"
    assert "the start table is in force again" in found.records[-1]["explanation"]
