from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine

from specctl.cli.main import main
from specctl.cli.status import _table_lines
from specctl.contract.classes import ClassLimit
from specctl.contract.setting import RowSample, Setting
from specctl.contract.table import TableRow, TableState, uniform_rows


def test_policy_validate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["policy", "validate", "balanced"]) == 0
    assert "valid, kind goodput" in capsys.readouterr().out
    wrong = tmp_path / "p.yaml"
    wrong.write_text("kind: goodput\nleese_s: 3\n")
    assert main(["policy", "validate", str(wrong)]) == 3
    assert f"{wrong}:2: leese_s: unknown key; did you mean lease_s?" in capsys.readouterr().err
    assert main(["policy", "validate", "nosuch"]) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"kind: off\nfrozen: !!bool maybe",
        b'!!int ""',
        b"kind: &a [*a]",
        b"\xff\xfe",
        b"a: " + b"9" * 5000,
        None,
    ],
)
def test_policy_commands_print_messages_and_no_tracebacks(
    content: bytes | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "p.yaml"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    for action in ("validate", "show", "schema"):
        for file in (str(path), "x" * 300, "a\0b"):
            assert main(["policy", action, file]) == 3
            err = capsys.readouterr().err
            assert "Traceback" not in err
            assert len(err) < 1000


def test_policy_show_and_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", "fixed"]) == 0
    assert "num_speculative_tokens: 4" in capsys.readouterr().out
    assert main(["policy", "schema"]) == 0
    assert "discriminator" in json.loads(capsys.readouterr().out)
    assert main(["policy", "schema", "off"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "OffPolicy"


def test_status(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(start_tokens=4, has_shadow=True) as engine:
        engine.advance(60.0)
        assert main(["status", engine.url]) == 0
        out = capsys.readouterr().out
        known = ("specctl_suffix on vllm 0.32.0", "1 running", "batch 1 and more: up to 4 drafts")
        for words in (*known, "acceptance  no drafts in the last 1 s", "the server was started with it"):
            assert words in out
        assert main(["status", engine.url, "--since-start"]) == 0
        assert "acceptance  0.9" in capsys.readouterr().out
        assert main(["status", engine.url, "--json", "--since-start"]) == 0
        seen = json.loads(capsys.readouterr().out)
    assert seen["buckets"][0]["tokens_per_s"] > 10
    assert len(seen["survival_at"]) == 8


@pytest.mark.parametrize("has_plugin", [True, False])
def test_status_counts_over_a_second(has_plugin: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """What was before does not count: the text is another one by now."""

    class Moving(FakeEngine):
        reads = 0

        def respond(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
            self.reads += path.endswith(("telemetry", "/metrics"))
            if self.reads == 2:
                self.advance(5.0)
            return super().respond(method, path, headers, body)

    with Moving(start_tokens=4, has_plugin=has_plugin, has_shadow=False) as engine:
        engine.advance(5.0)
        engine.traffic = RANDOM_TEXT
        assert main(["status", engine.url, "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert seen["window_s"] == 1.0
    assert (seen if has_plugin else seen["stock"])["survival_at"][0] < 0.3


def rows(*rows: TableRow, **changes: Any) -> list[str]:
    """Lines of a table's status."""
    with FakeEngine(start_tokens=2) as engine:
        applied = engine.applied().model_copy(update={"rows": rows or engine.rows, **changes})
    return _table_lines(applied)


def test_rows_in_words() -> None:
    setting = Setting(num_speculative_tokens=4, tree_topk=3, verify_width_tokens=12)
    lines = rows(
        TableRow(decode_batch_from=1, decode_batch_to=1, num_speculative_tokens=1),
        TableRow(decode_batch_from=2, decode_batch_to=6, num_speculative_tokens=8, min_token_prob=0.2),
        TableRow(
            decode_batch_from=7,
            context_to_tokens=4096,
            num_speculative_tokens=0,
            sample=RowSample(setting=setting, every_steps=200),
        ),
        TableRow(decode_batch_from=7, context_from_tokens=4097, num_speculative_tokens=3, tree_topk=2),
    )
    assert [line.strip() for line in lines[2:6]] == [
        "batch 1: up to 1 draft",
        "batch 2-6: up to 8 drafts, probability >= 0.2",
        "batch 7 and more, context 0-4096 tokens: off; 1 step in 200 with up to 4 drafts, 3 branches, "
        "12 positions verified, to measure",
        "batch 7 and more, context 4097 and more tokens: up to 3 drafts, 2 branches",
    ]


def test_what_is_sampled_without_drafts_is_said_so() -> None:
    off = Setting(num_speculative_tokens=0)
    sampled = TableRow(
        decode_batch_from=1, num_speculative_tokens=8, sample=RowSample(setting=off, every_steps=2)
    )
    assert "batch 1 and more: up to 8 drafts; 1 step in 2 without drafts, to measure" in rows(sampled)[-1]


def test_a_frozen_table_is_said_to_be_frozen_once() -> None:
    lines = rows(reason="frozen: batch 1: stays at 5 tokens, frozen: nothing is changed", owner="me")
    assert "\n".join(lines).count("frozen") == 1


def test_why_a_table_is_in_force() -> None:
    live = {"state": TableState.LIVE, "owner": "me@h:1", "age_s": 2.0}
    lines = rows(
        **live, lease_remaining_s=7.5, fallback_num_speculative_tokens=None, start_rows=uniform_rows(2)
    )
    assert "set by me@h:1 2.0 s ago, leased for another 7.5 s" in lines[0]
    assert lines[-2].endswith("when the lease ends: the table that the server was started with")
    assert lines[-1].strip() == "batch 1 and more: up to 2 drafts"
    lines = rows(**live, lease_remaining_s=7.5, fallback_num_speculative_tokens=0)
    assert lines[-1].endswith("when the lease ends: off for every batch")
    assert "without a lease" in rows(**live, lease_remaining_s=None)[0]
    fallback = rows(state=TableState.FALLBACK, age_s=3.0, fallback_num_speculative_tokens=1)[0]
    assert fallback.endswith("the last lease ran out 3.0 s ago, up to 1 draft for every batch")


def test_status_and_ctrl_c(tmp_path: Path) -> None:
    with FakeEngine() as engine:
        engine.delay_s = 30.0
        command = [sys.executable, "-m", "specctl.cli.main", "status", engine.url]
        with subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A shell that starts the tests in the background has SIGINT ignored, and children inherit it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            deadline = time.monotonic() + 60
            while not engine.requests and time.monotonic() < deadline:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (130, "", "")


def test_status_names_ranks_with_another_table(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine() as engine:
        engine.ranks_behind = (1, 3)
        assert main(["status", engine.url]) == 0
    assert "another table is in force on data-parallel rank 1, 3" in capsys.readouterr().out


def test_status_names_what_failed_in_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine() as engine:
        engine.failures = {"propose": 3}
        assert main(["status", engine.url]) == 0
    assert "the plugin failed in steps of this engine: propose 3" in capsys.readouterr().out


def test_status_tells_rules_for_classes(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine() as engine:
        engine.class_limits = (
            ClassLimit(kind="code", max_num_speculative_tokens=3),
            ClassLimit(namespace="", context_to_tokens=1024, max_num_speculative_tokens=0),
        )
        assert main(["status", engine.url]) == 0
    out = capsys.readouterr().out
    assert "kind code: up to 3 drafts" in out
    assert "namespace shared, context up to 1024: off" in out


def test_status_tells_the_engines_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine() as engine:
        engine.method_options = {"speculative_ngram_capacity": "1000", "speculative_ngram_match_type": "BFS"}
        assert main(["status", engine.url]) == 0
    printed = capsys.readouterr().out
    assert "options     speculative_ngram_capacity 1000, speculative_ngram_match_type BFS" in printed


def test_status_of_a_stock_server(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(start_tokens=4, has_plugin=False) as engine:
        engine.advance(5.0)
        assert main(["status", engine.url]) == 0
    assert "without the specctl plugin" in capsys.readouterr().out


def test_status_of_what_is_no_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(has_plugin=False) as engine:
        engine.forced_status["/metrics"] = 404
        assert main(["status", engine.url]) == 1
        assert "not an engine" in capsys.readouterr().err
    with FakeEngine(token="secret") as engine:
        assert main(["status", engine.url]) == 1
        assert "--token-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--policy", "balanced", "--target", "ftp://x"], 1),
        (["--policy", "nosuch", "--target", "http://127.0.0.1:1"], 3),
        (["--policy", "balanced", "--target", "http://h:1", "--target", "http://h:1/"], 1),
        (["--policy", "balanced", "--target", "http://h:1", "--token-file", "/nonexistent"], 4),
        (["--policy", "balanced", "--target", "http://h:1", "--audit-log", "/nonexistent/log"], 4),
        (["--policy", "balanced", "--target", "http://h:1", "--metrics-host", "192.0.2.1"], 4),
        (["--targets", "/nonexistent"], 4),
    ],
)
def test_autotune_refuses_before_the_first_look(arguments: list[str], code: int) -> None:
    assert main(["autotune", *arguments]) == code


def test_wrong_arguments() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["autotune", "--policy", "balanced"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["autotune", "--target", "h:1"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["autotune", "--policy", "balanced", "--target", "h:1", "--metrics-host", ""])
    assert caught.value.code == 2


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The daemon as a process; a test that fails does not wait for it."""
    command = [sys.executable, "-m", "specctl.cli.main", "autotune", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        try:
            yield daemon
        finally:
            if daemon.poll() is None:
                daemon.kill()


def wait_for(engine: FakeEngine, tokens: int) -> None:
    deadline = time.monotonic() + 20
    while engine.tokens_at(1) != tokens and time.monotonic() < deadline:
        time.sleep(0.05)
    assert engine.tokens_at(1) == tokens


def test_the_daemon_follows_a_targets_file(tmp_path: Path) -> None:
    """``rollout``: no engine has traffic here, so that no canary could pass."""
    path, more = tmp_path / "targets.yaml", "poll_interval_s: 0.2\nlease_s: 5\nrollout: {canary_s: 0}\n"
    (tmp_path / "five.yaml").write_text(f"kind: fixed\nnum_speculative_tokens: 5\n{more}")
    (tmp_path / "three.yaml").write_text(f"kind: fixed\nnum_speculative_tokens: 3\n{more}")
    rules = "policies: [{match: {tier: a}, policy: five.yaml}, {match: {tier: b}, policy: three.yaml}]\n"
    with FakeEngine() as a, FakeEngine() as b, FakeEngine() as c:

        def write(*targets: str) -> None:
            path.write_text(f"{rules}targets: [{', '.join(targets)}]\n")

        first = f"{{url: '{a.url}', labels: {{tier: a}}}}"
        write(first, f"{{url: '{c.url}', labels: {{tier: c}}}}")
        with started("--metrics-port", "0", "--targets", str(path)) as daemon:
            wait_for(a, 5)
            path.write_text("targets: nonsense\n")
            time.sleep(1.5)
            write(first, f"{{url: '{b.url}', labels: {{tier: b}}}}")
            wait_for(b, 3)
            write(f"{{url: '{a.url}', labels: {{tier: b}}}}", f"{{url: '{b.url}', labels: {{tier: b}}}}")
            wait_for(a, 3)
            daemon.send_signal(signal.SIGTERM)
            _, log = daemon.communicate(timeout=10)
        assert daemon.returncode == 0
        assert c.puts == []
        assert {put.owner for put in a.puts} == {put.owner for put in b.puts}
    assert f"{c.url}: refused: no policy rule matches its labels (tier=c)" in log
    assert "targets.yaml:1: targets: Input should be a valid tuple, got 'nonsense'" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_daemon_acts_serves_its_metrics_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    port = _free_port()
    audit = tmp_path / "audit.jsonl"
    with FakeEngine(start_tokens=2, traffic=COPYING) as engine:
        options = ["--audit-log", str(audit), "--metrics-port", str(port)]
        with started("--policy", "fixed", "--target", engine.url, *options) as daemon:
            wait_for(engine, 4)
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
            daemon.send_signal(number)
            _, log = daemon.communicate(timeout=10)
        assert daemon.returncode == 0
        assert (engine.tokens_at(1), engine.lease_s) == (2, None)
    assert "specctl_decisions_total" in page
    assert "Traceback" not in log
    assert log.rstrip().endswith("stopped")
    assert json.loads(audit.read_text().splitlines()[0])["reason"] == "set_by_policy"


def test_a_password_of_a_target_is_shown_nowhere(tmp_path: Path) -> None:
    port, audit = _free_port(), tmp_path / "audit.jsonl"
    with FakeEngine(start_tokens=2, traffic=COPYING) as engine:
        url = engine.url.replace("http://", "http://bob:secret@")
        options = ["--audit-log", str(audit), "--metrics-port", str(port)]
        with started("--policy", "fixed", "--target", url, *options) as daemon:
            wait_for(engine, 4)
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
            daemon.send_signal(signal.SIGTERM)
            _, log = daemon.communicate(timeout=10)
    assert f'target="{engine.url}"' in page
    for shown in (page, log, audit.read_text()):
        assert "secret" not in shown
        assert engine.url in shown


def test_ctrl_c_while_a_command_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specctl.cli.main.importlib.import_module", interrupted)
    assert main(["status", "h:1"]) == 130


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
