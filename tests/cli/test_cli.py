from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from fakes.engine import COPYING, FakeEngine

from specctl.cli.autotune import read_profiles
from specctl.cli.main import main
from specctl.contract.classes import ClassLimit
from specctl.engine_profile import load_profile
from specctl.simulate.files import find_file


def test_policy_validate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["policy", "validate", "balanced"]) == 0
    assert "valid, kind goodput" in capsys.readouterr().out
    wrong = tmp_path / "p.yaml"
    wrong.write_text("kind: goodput\nleese_s: 3\n")
    assert main(["policy", "validate", str(wrong)]) == 3
    assert f"{wrong}:2: leese_s: unknown key; did you mean lease_s?" in capsys.readouterr().err
    assert main(["policy", "validate", "nosuch"]) == 3


def test_policy_show_and_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", "fixed"]) == 0
    assert "num_speculative_tokens: 8" in capsys.readouterr().out
    assert main(["policy", "schema"]) == 0
    assert "discriminator" in json.loads(capsys.readouterr().out)
    assert main(["policy", "schema", "off"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "OffPolicy"


def test_status(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(start_tokens=4) as engine:
        engine.advance(5.0)
        assert main(["status", engine.url]) == 0
        out = capsys.readouterr().out
        for words in ("specctl_suffix on vllm 0.32.0", "1 running", "4 tokens", "acceptance  0.9", "nobody"):
            assert words in out
        assert main(["status", engine.url, "--json"]) == 0
        seen = json.loads(capsys.readouterr().out)
    assert seen["buckets"][0]["tokens_per_s"] > 10
    assert len(seen["survival_at"]) == 8


def test_status_names_ranks_with_another_table(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine() as engine:
        engine.ranks_behind = (1, 3)
        assert main(["status", engine.url]) == 0
    assert "another table is in force on data-parallel rank 1, 3" in capsys.readouterr().out


def test_status_tells_rules_for_classes(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine() as engine:
        engine.class_limits = (
            ClassLimit(kind="code", max_num_speculative_tokens=3),
            ClassLimit(namespace="", context_to_tokens=1024, max_num_speculative_tokens=0),
        )
        assert main(["status", engine.url]) == 0
    out = capsys.readouterr().out
    assert "kind code: at most 3 tokens" in out
    assert "namespace shared, context up to 1024: off" in out


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
        (["--policy", "balanced", "--target", "http://h:1", "--engine-profile", "/nonexistent"], 4),
        (["--targets", "/nonexistent"], 4),
    ],
)
def test_autotune_refuses_before_the_first_look(arguments: list[str], code: int) -> None:
    assert main(["autotune", *arguments]) == code


def test_engine_profiles_are_files_or_folders_of_them(tmp_path: Path) -> None:
    shipped = find_file("h200-llama8b-vllm032", "profiles")
    for name in ("b.yaml", "a.yaml", "notes.txt"):
        shutil.copy(shipped, tmp_path / name)
    one = load_profile(shipped)
    assert read_profiles([]) == []
    assert read_profiles([shipped, tmp_path]) == [one] * 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method: specctl_suffix", "fingerprint: Field required"),
        ("[", "expected YAML or JSON in UTF-8"),
        (None, "expected a file *.yaml in the folder, got none"),
    ],
    ids=["not a profile", "not YAML", "empty folder"],
)
def test_a_broken_engine_profile_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / "p.yaml").write_text(text)
    arguments = ["autotune", "--policy", "balanced", "--target", "http://h:1"]
    assert main([*arguments, "--engine-profile", str(tmp_path)]) == 4
    said = capsys.readouterr().err
    assert words in said
    assert str(tmp_path) in said


def test_wrong_arguments() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["autotune", "--policy", "balanced"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["autotune", "--target", "h:1"])
    assert caught.value.code == 2


def test_the_daemon_follows_a_targets_file(tmp_path: Path) -> None:
    path, quick = tmp_path / "targets.yaml", "poll_interval_s: 0.2\nlease_s: 5"
    (tmp_path / "five.yaml").write_text(f"kind: fixed\nnum_speculative_tokens: 5\n{quick}\n")
    (tmp_path / "three.yaml").write_text(f"kind: fixed\nnum_speculative_tokens: 3\n{quick}\n")
    rules = "policies: [{match: {tier: a}, policy: five.yaml}, {match: {tier: b}, policy: three.yaml}]\n"
    with FakeEngine() as a, FakeEngine() as b, FakeEngine() as c:

        def write(*targets: str) -> None:
            path.write_text(f"{rules}targets: [{', '.join(targets)}]\n")

        def wait_for(engine: FakeEngine, tokens: int) -> None:
            deadline = time.monotonic() + 20
            while engine.tokens_at(1) != tokens and time.monotonic() < deadline:
                time.sleep(0.05)
            assert engine.tokens_at(1) == tokens

        first = f"{{url: '{a.url}', labels: {{tier: a}}}}"
        write(first, f"{{url: '{c.url}', labels: {{tier: c}}}}")
        command = [sys.executable, "-m", "specctl.cli.main", "autotune", "--metrics-port", "0"]
        command += ["--targets", str(path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
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
        command = [sys.executable, "-m", "specctl.cli.main", "autotune", "--policy", "fixed"]
        command += ["--target", engine.url, "--audit-log", str(audit), "--metrics-port", str(port)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
            deadline = time.monotonic() + 20
            while engine.tokens_at(1) != 8 and time.monotonic() < deadline:
                time.sleep(0.05)
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
            daemon.send_signal(number)
            _, log = daemon.communicate(timeout=10)
        assert daemon.returncode == 0
        assert engine.tokens_at(1) == 8
    assert "specctl_target_up_ratio" in page
    assert "Traceback" not in log
    assert log.rstrip().endswith("stopped")
    assert json.loads(audit.read_text().splitlines()[0])["reason"] == "set_by_policy"


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
