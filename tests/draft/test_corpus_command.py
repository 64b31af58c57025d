from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from specctl.cli.main import main
from specctl.draft.corpus_file import documents_of, fingerprint_of, load, read_header

WORDS = ["<s>", "one", "two", "three", "secret", "[UNK]"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer.json of whole words, which truncates and pads unless told not to."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made.enable_truncation(3)
    made.enable_padding(length=3)
    folder = tmp_path / "model"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def ids_only(tmp_path: Path) -> Path:
    """A folder from which no text can be tokenised."""
    folder = tmp_path / "ids"
    folder.mkdir()
    (folder / "vocab.json").write_text("{}")
    return folder


def lines(path: Path, *values: object) -> str:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return str(path)


def build(folder: Path, output: Path, *arguments: str) -> int:
    return main(["corpus", "build", "--tokenizer", str(folder), "--output", str(output), *arguments])


def texts(path: Path) -> list[list[int]]:
    return [document.tolist() for document in documents_of(load(path))]


def test_build_and_inspect(tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "c"
    first = lines(tmp_path / "a.jsonl", {"output": "one two three one secret"}, {"output": ""}, [4, 4])
    second = lines(tmp_path / "b.jsonl", {"output": [7, 8], "prompt": "two"}, {"output": "two"})
    assert build(tokenizer, output, "--namespace", "team-a", first, second) == 0
    printed = capsys.readouterr()
    assert texts(output) == [[1, 2, 3, 1, 4], [4, 4], [7, 8], [2]]
    assert read_header(output).fingerprint == fingerprint_of(tokenizer)
    assert "4 documents, 10 tokens" in printed.out
    assert main(["corpus", "inspect", str(output)]) == 0
    seen = capsys.readouterr().out
    for words in ("format version 1", "'team-a'", fingerprint_of(tokenizer), "10 in 4 documents", "a token"):
        assert words in seen
    assert seen.endswith("checksum     ok\n")
    assert "secret" not in printed.out + printed.err + seen


def test_fields_and_a_byte_budget(tmp_path: Path, ids_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [{"reply": {"ids": [number] * 100}} for number in range(40)]
    source = lines(tmp_path / "a.jsonl", *answers)
    output = tmp_path / "c"
    arguments = ["--field", "reply.ids", "--max-bytes", "20000", source]
    assert build(ids_only, output, *arguments) == 0
    found = texts(output)
    assert 2 <= len(found) < 40
    assert found == [[number] * 100 for number in range(40 - len(found), 40)]
    assert load(output).mem.nbytes <= 20_000
    assert f"{len(found)} documents ({40 - len(found)} left out)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"output": "secret"', ":2:20: no JSON: "),
        ("{'output'}", ":2:2: no JSON: "),
        ("[" * 100_000, ":2: no JSON"),
        ('{"reply": "secret"}', ":2: expected a field 'output', or a list of token ids"),
        ('"secret"', ":2: expected a field 'output'"),
        ('{"output": 5}', ":2: output: expected a text or a list of token ids"),
        ('{"output": [1, "secret"]}', ":2: item 1: expected a token id from 0 to 2147483647"),
        ("[1, 2147483648]", ":2: item 1"),
        ("[true]", ":2: item 0"),
        ('{"output": "\\ud800"}', ":2: output: half of a surrogate pair"),
        ("\xff", ":2: no JSON"),
    ],
)
def test_a_wrong_line_is_named_and_not_shown(
    tmp_path: Path, ids_only: Path, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    source, output = tmp_path / "a.jsonl", tmp_path / "c"
    source.write_bytes(b"[1, 2]\n" + line.encode("latin-1") + b"\n")
    assert build(ids_only, output, str(source)) == 4
    printed = capsys.readouterr().err
    assert f"{source}{words}" in printed
    assert "secret" not in printed
    assert not output.exists()


def test_what_build_needs(
    tmp_path: Path, ids_only: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "c"
    ids, text = lines(tmp_path / "ids.jsonl", [1, 2]), lines(tmp_path / "text.jsonl", {"output": "one"})
    empty = lines(tmp_path / "empty.jsonl")
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "tokenizer.json").write_text("{}")
    for folder, arguments, words in (
        (ids_only, [str(tmp_path / "no.jsonl")], "no.jsonl: cannot be read"),
        (ids_only, [empty], "expected outputs in"),
        (tmp_path / "nosuch", [ids], "nosuch: cannot be read"),
        (ids_only, ["--max-bytes", "10", ids], "max_bytes: expected at least"),
    ):
        assert build(folder, output, *arguments) == 4
        assert words in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert build(ids_only, output, text) == 4
    assert "pip install tokenizers" in capsys.readouterr().err
    assert build(ids_only, output, ids) == 0
    assert texts(output) == [[1, 2]]


def test_a_tokenizer_that_is_none(tmp_path: Path, ids_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    text = lines(tmp_path / "text.jsonl", {"output": "one"})
    assert build(ids_only, tmp_path / "c", text) == 4
    assert "tokenizer.json: not there" in capsys.readouterr().err
    (ids_only / "tokenizer.json").write_text("{}")
    assert build(ids_only, tmp_path / "c", text) == 4
    assert "tokenizer.json: not a tokenizer" in capsys.readouterr().err


def test_inspect_of_what_is_wrong(tmp_path: Path, ids_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "c"
    assert main(["corpus", "inspect", str(output)]) == 4
    assert "cannot be read" in capsys.readouterr().err
    assert build(ids_only, output, lines(tmp_path / "a.jsonl", [1, 2])) == 0
    whole = output.read_bytes()
    output.write_bytes(whole[:-1] + b"\1")
    assert main(["corpus", "inspect", str(output)]) == 4
    out = capsys.readouterr().out
    assert "2 in 1 documents" in out
    assert "checksum     WRONG" in out


def test_merge(tmp_path: Path, ids_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, other = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    assert build(ids_only, one, lines(tmp_path / "a.jsonl", [1] * 50, [2])) == 0
    assert build(ids_only, two, lines(tmp_path / "b.jsonl", [2], [3])) == 0
    assert build(ids_only, other, "--namespace", "b", lines(tmp_path / "c.jsonl", [9])) == 0
    capsys.readouterr()
    assert main(["corpus", "merge", "--output", str(one), str(one), str(two)]) == 0
    assert "3 documents (1 left out), 52 tokens" in capsys.readouterr().out
    assert texts(one) == [[1] * 50, [2], [3]]
    assert main(["corpus", "merge", "--output", str(one), str(one), str(other)]) == 4
    assert "namespace: expected '', got 'b'" in capsys.readouterr().err
    (ids_only / "merges.txt").write_text("a b")
    assert build(ids_only, other, str(tmp_path / "c.jsonl")) == 0
    assert main(["corpus", "merge", "--output", str(one), str(one), str(other)]) == 4
    assert "fingerprint: expected" in capsys.readouterr().err
    assert main(["corpus", "merge", "--max-bytes", "9", "--output", str(one), str(one)]) == 4
    assert texts(one) == [[1] * 50, [2], [3]]


def test_wrong_arguments() -> None:
    for arguments in (["corpus"], ["corpus", "merge", "--output", "x", "--max-bytes", "0", "y"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
