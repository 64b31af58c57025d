from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes.engine import FakeEngine

from specctl.cli.main import main
from specctl.contract.table import TablePut, uniform_rows
from specctl.policy.loader import load_policy

POLICY = "# Why: see the incident page.\nkind: fixed\nnum_speculative_tokens: 3  # measured\n"


@pytest.mark.parametrize("ending", ["", "frozen: false\nname: x\n", "frozen : no # by ops\n"])
def test_freeze_and_thaw_change_one_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(POLICY + ending)
    path.chmod(0o640)
    for _ in range(2):
        assert main(["freeze", str(path)]) == 0
        assert load_policy(path).frozen
    text = path.read_text()
    assert text.startswith(POLICY)
    assert text.count("frozen") == 1
    assert main(["thaw", str(path)]) == 0
    assert not load_policy(path).frozen
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_targets_file_and_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, link = tmp_path / "targets.yaml", tmp_path / "link.yaml"
    path.write_text("targets: []\n")
    os.symlink(path, link)
    assert main(["freeze", str(link)]) == 0
    assert path.read_text() == "targets: []\nfrozen: true\n"
    assert link.is_symlink()
    assert f"{path}: frozen" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("kind: fixed\n", 3, "num_speculative_tokens: missing"),
        ("targets: 3\n", 4, "targets: Input should be"),
        ("a: [", 4, "not YAML"),
        ("{kind: off}\n", 4, "by hand"),
    ],
)
def test_a_file_that_no_daemon_would_take_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, words: str
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    assert main(["freeze", str(path)]) == code
    assert words in capsys.readouterr().err
    assert path.read_text() == text


def test_what_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["freeze", "balanced"]) == 4
    assert "run the daemon on a copy" in capsys.readouterr().err
    assert main(["freeze", str(tmp_path / "none.yaml")]) == 3


def test_status_says_that_a_table_is_frozen(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine() as engine:
        put = TablePut(
            base_version=0,
            rows=uniform_rows(3),
            lease_s=10.0,
            fallback_num_speculative_tokens=0,
            owner="autotune x",
            reason="frozen: nothing is changed",
        )
        engine.put(put.model_dump_json().encode())
        assert main(["status", engine.url]) == 0
    assert "its daemon holds this table and changes nothing" in capsys.readouterr().out
