"""The command itself: its lists, options in every place, JSON, completion, and what is missing."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from fakes.engine import FakeEngine

from specctl import __version__
from specctl.cli.main import COMMANDS, cli, main
from specctl.errors import install_words

ROOT = Path(__file__).resolve().parents[2]


def leaves() -> list[tuple[str, ...]]:
    """Every command and every command of a group."""
    found: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        found += [(name, inner) for inner in getattr(command, "commands", {})] or [(name,)]
    return found


@pytest.fixture(autouse=True)
def level_of_the_log() -> object:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"specctl {__version__}\n"


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"  {name} " in out
    assert "no daemon confirmed the freeze" in out


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("words", [("doctor", "--window"), ("bench", "--seconds"), ("bench", "--minutes")])
def test_a_number_is_finite(words: tuple[str, str], value: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, option = words
    with pytest.raises(SystemExit, match="2"):
        main([command, "http://127.0.0.1:1", option, value])
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("command", leaves(), ids=" ".join)
def test_every_help_has_examples(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "-h"]) == 0
    out = capsys.readouterr().out
    assert f"Examples:\n    specctl {command[0]}" in out.replace('eval "$(', "") or command == ("completion",)
    for option in ("--log-level", "--verbose"):
        assert option in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["-v", "policy", "validate", "fixed"],
        ["policy", "-v", "validate", "fixed"],
        ["policy", "validate", "fixed", "--log-level", "debug"],
        ["--log-level", "error", "policy", "validate", "-v", "fixed"],
    ],
)
def test_the_log_level_stands_before_or_after_a_command(arguments: list[str]) -> None:
    assert main(arguments) == 0
    assert logging.getLogger().level == logging.DEBUG


def test_the_log_level_of_an_earlier_run_is_gone() -> None:
    assert main(["-v", "policy", "validate", "fixed"]) == 0
    assert main(["policy", "validate", "fixed"]) == 0
    assert logging.getLogger().level == logging.INFO


def test_policies_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "validate", "fixed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "fixed"
    assert main(["policy", "show", "fixed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_speculative_tokens"] == 4


def test_a_command_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["statsu", "x"])
    assert "No such command 'statsu'" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["xxhash", "numba"])
def test_a_plain_install_says_what_a_corpus_needs(tmp_path: Path, package: str) -> None:
    """In a process: modules that were imported before would hide it."""
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from specctl.cli.main import main\n"
        "assert main(['corpus', 'inspect', '--help']) == 0\n"
        f"sys.exit(main(['corpus', 'inspect', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 4
    assert done.stderr.strip().endswith(f"needs the package {package}; {install_words('draft')}")


def test_packages_come_from_a_clone() -> None:
    """No package index has specctl."""
    assert install_words("top") == "in a clone of specctl: pip install '.[top]'"
    assert not [path for path in (ROOT / "specctl").rglob("*.py") if "specctl-serving[" in path.read_text()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capfd.readouterr().out
    assert "_SPECCTL_COMPLETE" in script
    if shutil.which(shell) and shell != "fish":
        assert subprocess.run([shell, "-n"], input=script, text=True).returncode == 0


def completed(line: str) -> list[str]:
    words = line.split(" ")
    environment = {
        **os.environ,
        "_SPECCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "specctl.cli.main"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [item.partition(",")[2] for item in done.stdout.splitlines()]


def test_completion_of_commands_options_and_policies() -> None:
    assert completed("specctl stat") == ["status"]
    assert "--since-start" in completed("specctl status --si")
    assert completed("specctl autotune --policy bal") == ["balanced"]


def test_no_colours_and_no_bars_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "http://127.0.0.1:1", "--output", str(tmp_path / "log")]) == 1
    with FakeEngine() as engine:
        assert main(["record", engine.url, "--output", str(tmp_path / "log"), "--for", "0.1"]) == 0
        engine.failures = {"propose": 3}
        assert main(["status", engine.url, "--since-start"]) == 0
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [["policy", "schema"], ["completion", "bash"], ["--help"]])
def test_a_full_disk_under_the_output_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "specctl.cli.main", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (4, "standard output: No space left on device\n")


def test_shipped_policies_are_in_the_wheel(tmp_path: Path) -> None:
    """``pip install --target`` puts them beside the package."""
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"
    shutil.copytree(
        ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(".*", "tests", "benchmarks", "build")
    )
    build = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", build, str(tmp_path)],
        cwd=source, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    target = tmp_path / "target"
    shutil.unpack_archive(wheel, target, "zip")
    done = subprocess.run(
        [sys.executable, "-m", "specctl.cli.main", "policy", "validate", "balanced"],
        env={**os.environ, "PYTHONPATH": str(target)}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"{target}/specctl/policies/balanced.yaml: valid"), done.stderr
