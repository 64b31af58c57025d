"""``specctl simulate`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specctl.cli.main import main

PROFILE = "h200-llama8b-vllm032"


def command(trace: Path, *more: str) -> list[str]:
    return ["simulate", "--trace", str(trace), "--engine-profile", PROFILE, *more]


def test_a_small_trace_is_compared_written_and_drawn(
    trace_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, chart = tmp_path / "out.json", tmp_path / "out.png"
    arguments = ["--policy", "balanced", "fixed", "--json", str(out), "--chart", str(chart)]
    assert main(command(trace_file, *arguments, "--acceptance", "drifting", "--speed", "2")) == 0
    written = json.loads(out.read_text())
    names = [arm["name"] for arm in written["arms"]]
    statics = [f"static {value}" for value in range(1, 9)]
    rules = ["stock table", "sglang adaptive", "clairvoyant"]
    assert names == ["policy balanced", "policy fixed", "off", *statics, *rules]
    assert {arm["emitted_tokens"] for arm in written["arms"]} == {sum(20 + i for i in range(40))}
    assert written["inputs"]["requests"] == 40
    printed = capsys.readouterr().out
    assert "40 requests over 1 s, acceptance drifting" in printed
    assert all(name in printed for name in names)
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_writes_the_same_file(trace_file: Path, tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"]
    for path, seed in zip(files, ("4", "4", "5"), strict=True):
        assert main(command(trace_file, "--policy", "balanced", "--seed", seed, "--json", str(path))) == 0
    first, again, other = (path.read_text() for path in files)
    assert first == again
    assert first != other


def test_a_profile_of_another_machine_is_refused(
    trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--policy", "off", "--fingerprint", "gpu=NVIDIA H200", "--fingerprint", "dtype=fp8"]
    assert main(command(trace_file, *arguments)) == 4
    assert "dtype: expected fp8, got bfloat16" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--policy", "nothing"], 3, "nothing: no such file"),
        (["--policy", "off", "--acceptance", "nothing"], 4, "shipped scenarios"),
        (["--policy", "off", "--speed", "0"], 4, "speed: expected a number over 0, got 0.0"),
        (["--policy", "off", "--speed", "1e-320"], 4, "is the trace in seconds?"),
    ],
)
def test_wrong_inputs_end_with_a_reason(
    more: list[str], code: int, words: str, trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(trace_file, *more)) == code
    assert words in capsys.readouterr().err


def test_files_are_read_before_anything_is_compiled(
    tmp_path: Path,
    trace_file: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specctl.simulate.compiled.is_cached", lambda _: False)
    assert main(command(tmp_path / "none.csv", "--policy", "off")) == 4
    assert "none.csv" in capsys.readouterr().err
    assert "compiling" not in caplog.text
    assert main(command(trace_file, "--policy", "off")) == 0
    assert "compiling the simulator, once" in caplog.text


@pytest.mark.parametrize(
    "more",
    [
        ["--fingerprint", "gpu"],
        ["--batch-table", "2-4:3"],
        ["--batch-table", "1-4:3,6-:0"],
        ["--requests", "0"],
        ["--seed", "-1"],
        ["--seed", "99999999999999999999999"],
    ],
)
def test_wrong_arguments_are_2(more: list[str], trace_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command(trace_file, "--policy", "off", *more))
    assert ended.value.code == 2
    assert f"Invalid value for '{more[0]}'" in capsys.readouterr().err


def test_a_stock_table_of_ones_own(trace_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    arguments = ["--policy", "off", "--batch-table", "1-2:3,3-:0", "--requests", "5", "--json", str(path)]
    assert main(command(trace_file, *arguments)) == 0
    arms = {arm["name"]: arm for arm in json.loads(path.read_text())["arms"]}
    # Five requests, at most two at once: the first range holds throughout.
    assert arms["stock table"]["tokens_per_s"] == arms["static 3"]["tokens_per_s"]
    assert arms["off"]["requests"] == 5
