from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from fakes.engine import FakeEngine
from fakes.http_server import FakeServer

from specctl.cli import freeze
from specctl.cli.main import main
from specctl.contract.table import TablePut, uniform_rows
from specctl.policy.loader import load_policy
from specctl.watch.views import FrozenFile, FrozenFiles


class Daemon(FakeServer):
    """Its HTTP port. It takes a file up at the second question; ``bodies``: in place of its answers."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self.asked = 0
        self.body: bytes | None = None
        self.taken = {path: load_policy(path).frozen for path in paths if "policy" in path.name}

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        assert (method, path) == ("GET", "/frozen")
        self.asked += 1
        if self.body is not None:
            return 200, self.body
        if self.asked > 1:
            self.taken = {path: "frozen: true" in path.read_text() for path in self.paths}
        files = [
            FrozenFile(
                path=str(path), frozen=frozen, targets=3, unsettled_targets=1 if self.asked == 2 else 0
            )
            for path, frozen in self.taken.items()
        ]
        return 200, FrozenFiles(files=tuple(files)).model_dump_json().encode()


def changed(word: str, path: Path) -> int:
    with Daemon(path.resolve()) as daemon:
        code = main([word, str(path), "--daemon", daemon.url])
        assert daemon.asked in (1, 3), "at once only where it was so before"
    return code


POLICY = "# Why: see the incident page.\nkind: fixed\nnum_speculative_tokens: 3  # measured\n"


@pytest.mark.parametrize("ending", ["", "frozen: false\nname: x\n", "frozen : no # by ops\n"])
def test_freeze_and_thaw_change_one_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY + ending)
    path.chmod(0o640)
    for _ in range(2):
        assert changed("freeze", path) == 0
        assert load_policy(path).frozen
    text = path.read_text()
    assert text.startswith(POLICY)
    assert text.count("frozen") == 1
    assert text.count("#") == (POLICY + ending).count("#"), "comments stay"
    assert changed("thaw", path) == 0
    assert not load_policy(path).frozen
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_targets_file_and_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, link = tmp_path / "targets.yaml", tmp_path / "link.yaml"
    path.write_text("targets: []\n")
    os.symlink(path, link)
    assert changed("freeze", link) == 0
    assert path.read_text() == "targets: []\nfrozen: true\n"
    assert link.is_symlink()
    out = capsys.readouterr().out
    assert f"{path}: frozen, as the daemon at http://127.0.0.1:" in out
    assert "(3 target(s))" in out


def test_without_a_word_of_the_daemon_it_is_not_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze, "CONFIRM_S", 0.5)
    path, other = tmp_path / "policy.yaml", tmp_path / "other_policy.yaml"
    for file in (path, other):
        file.write_text(POLICY)

    def refused(daemon: str) -> str:
        path.write_text(POLICY)
        assert main(["freeze", str(path), "--daemon", daemon]) == freeze.EXIT_NOT_CONFIRMED
        assert load_policy(path).frozen
        return capsys.readouterr().err

    assert "frozen: true is written, but not confirmed: http://127.0.0.1:1" in refused("http://127.0.0.1:1")
    with Daemon(other) as daemon:
        assert "does not use this file" in refused(daemon.url)
        for body in (b"", b"<html>", b"{}", b"[" * 9999, b'{"files": 3}'):
            daemon.body = body
            assert "no answer of a specctl daemon" in refused(daemon.url)
        known = FrozenFile(path=str(path), frozen=False, refusal="p:1: no\n\x1b[2J")
        daemon.body = FrozenFiles(files=(known,)).model_dump_json().encode()
        assert "refuses the file: p:1: no  [2J" in refused(daemon.url)
        known = FrozenFile(path=str(path), frozen=False)
        daemon.body = FrozenFiles(files=(known,)).model_dump_json().encode()
        assert "has not taken it up" in refused(daemon.url)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_root_leaves_the_file_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    path.chmod(0o640)
    os.chown(path, 1234, 2345)
    assert changed("freeze", path) == 0
    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1234, 2345, 0o640)


@pytest.mark.parametrize("broken", ["fchown", "mkstemp"])
def test_a_file_that_cannot_be_given_back_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    path = tmp_path / "policy.yaml"
    path.write_text(POLICY + "frozen:          false\n")
    before = path.stat()
    monkeypatch.setattr(os, "getegid", lambda: -1)
    monkeypatch.setattr(*((os, "fchown") if broken == "fchown" else (tempfile, "mkstemp")), forbidden)
    assert changed("freeze", path) == 0
    assert path.read_text() == POLICY + "frozen: true\n"
    assert path.stat().st_ino == before.st_ino
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("kind: fixed\n", 3, "num_speculative_tokens: missing"),
        ("targets: 3\n", 4, "targets: Input should be"),
        ("a: [", 4, "not YAML"),
        ("kind: &a [*a]", 4, "anchors and aliases"),
        ("kind: off\nfrozen: !!bool maybe", 4, "the tag"),
        ("{kind: off}\n", 4, "by hand"),
    ],
)
def test_a_file_that_no_daemon_would_take_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, words: str
) -> None:
    path = tmp_path / "policy.yaml"
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
