"""The file of a frozen corpus: whole or refused, and never at the cost of the earlier one."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from draft.texts import RUNGS, TEXTS, Texts, arrays, texts_of

from specctl.draft import corpus_file
from specctl.draft.chains import HEAD, SEPARATOR, block_words
from specctl.draft.corpus_file import (
    CHAINS_LAYOUT,
    build_block,
    fingerprint_of,
    load,
    read_header,
    save,
    set_aside,
)
from specctl.errors import CorpusFileError

OUTCOMES = {"": np.array([[0, 700, 3, 1]]), "chat": np.array([[1, 700, 2, 2], [1, 701, 1, 0]])}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "answers.corpus"
    save(path, build_block(arrays(TEXTS), RUNGS), "team-a", "f" * 32)
    return path


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_file, "_PIECE_BYTES", 4096)


def refused(path: Path, reason: str, **wanted: str) -> str:
    with pytest.raises(CorpusFileError) as caught:
        load(path, **wanted)
    assert caught.value.reason == reason
    assert str(path) in str(caught.value)
    return str(caught.value)


def only_file(folder: Path) -> str:
    (file,) = folder.iterdir()
    return file.name


def test_the_layout_version_tells_layouts_apart() -> None:
    """Fails when ``chains`` lays out its words anew: raise CHAINS_LAYOUT, then write the new value here."""
    corpus = build_block(arrays(TEXTS), RUNGS)
    digest = xxhash.xxh3_64_hexdigest(corpus.mem.tobytes() + corpus.row.tobytes())
    assert (CHAINS_LAYOUT, digest) == (2, "5ebc52de8530137d")


# Round trip


@pytest.mark.parametrize("texts", [TEXTS, [], [[2**31 - 1]]], ids=["random", "empty", "largest-id"])
@pytest.mark.usefixtures("small_pieces")
def test_round_trip(tmp_path: Path, texts: Texts) -> None:
    corpus = build_block(arrays(texts), RUNGS)
    save(tmp_path / "c", corpus, "team-a", "abc")
    found = load(tmp_path / "c", "team-a", "abc", rungs=corpus.rungs)
    np.testing.assert_array_equal(found.mem, corpus.mem)
    np.testing.assert_array_equal(found.row, corpus.row)
    assert found.rungs.tolist() == list(RUNGS)
    assert texts_of(found) == texts
    counts = (corpus.tokens, corpus.documents, corpus.largest_id)
    assert (found.tokens, found.documents, found.largest_id) == counts
    assert type(found.mem) is np.ndarray
    assert (found.mem.dtype, found.mem.flags.writeable) == (np.uint32, False)
    assert only_file(tmp_path) == "c"


def test_header_and_mode(saved: Path) -> None:
    header = read_header(saved)
    assert (header.namespace, header.documents) == ("team-a", 30)
    assert saved.stat().st_mode & 0o777 == 0o600
    saved.chmod(0o640)
    save(saved, build_block(arrays([[1]]), RUNGS), "team-a", "f" * 32)
    assert saved.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(saved: Path) -> None:
    link = saved.with_name("link")
    link.symlink_to(saved)
    save(link, build_block(arrays([[1]]), RUNGS), "team-a", "f" * 32)
    assert link.is_symlink()
    assert texts_of(load(saved)) == [[1]]


def test_a_ring_is_not_saved(tmp_path: Path) -> None:
    corpus = build_block(arrays(TEXTS), RUNGS)
    corpus.row[HEAD] += 1
    with pytest.raises(ValueError, match="row"):
        save(tmp_path / "c", corpus, "", "")
    assert not list(tmp_path.iterdir())


# What is refused


def block_start(path: Path) -> int:
    return path.stat().st_size - 4 * int(block_words(read_header(path).cap, np.array(RUNGS, np.int64)))


def test_torn_files_are_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    start = block_start(saved)
    for size in (0, 5, 8, 12, 23, 24, 25, 200, start - 1, start, start + 1, start + 4096, len(whole) - 1):
        saved.write_bytes(whole[:size])
        refused(saved, "damaged")
    saved.write_bytes(whole + b"\0")
    assert f"expected {len(whole)} bytes, got {len(whole) + 1}" in refused(saved, "damaged")


@pytest.mark.usefixtures("small_pieces")
def test_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save(path, build_block(arrays(TEXTS), RUNGS), "team-a", "abc")
    whole = path.read_bytes()
    start = block_start(path)
    reasons = {0: "foreign", 7: "foreign", 8: "version", 12: "damaged", 15: "damaged", 16: "damaged"}
    inside = (23, 24, 60, 200, start - 1, start, start + 4095, start + 4096, len(whole) - 1)
    for at, reason in {**reasons, **dict.fromkeys(inside, "damaged")}.items():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        words = refused(path, reason)
    pieces = -(-(len(whole) - start) // 4096)
    assert f"piece {pieces} of {pieces}: expected checksum" in words
    assert load(path, verify=False).documents == 30


def test_foreign_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "c"
    refused(path, "io")
    refused(tmp_path, "io")
    path.write_bytes(b"PK\x03\x04" + bytes(10_000))
    refused(path, "foreign")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "io")


def test_another_namespace_tokenizer_or_ladder(saved: Path) -> None:
    load(saved, "team-a", "f" * 32)
    words = refused(saved, "mismatch", namespace="team-b")
    assert "namespace: expected 'team-b', got 'team-a'" in words
    assert "fingerprint: expected '0'" in refused(saved, "mismatch", fingerprint="0")
    with pytest.raises(CorpusFileError, match=r"rungs: expected \[1, 2\], got \[1, 2, 6\]"):
        load(saved, rungs=np.array([1, 2], np.int64))


def test_another_version(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_file, "CHAINS_LAYOUT", CHAINS_LAYOUT + 1)
    expected = f"layout version {CHAINS_LAYOUT + 1}, got {CHAINS_LAYOUT}"
    assert expected in refused(saved, "version")
    monkeypatch.undo()
    save(saved, replace(load(saved), outcomes=OUTCOMES), "", "f")
    monkeypatch.setattr(corpus_file, "FORMAT_VERSION", 1)
    assert "format version 1 or older, got 2" in refused(saved, "version")


def test_outcomes_come_back(saved: Path) -> None:
    """A file without them is one that releases from before them read."""
    assert corpus_file.version_of(read_header(saved)) == 1
    assert load(saved).outcomes == {}
    save(saved, replace(load(saved), outcomes=OUTCOMES), "", "f")
    assert corpus_file.version_of(read_header(saved)) == 2
    found = {name: rows.tolist() for name, rows in load(saved).outcomes.items()}
    assert found == {name: rows.tolist() for name, rows in OUTCOMES.items()}


@pytest.mark.parametrize(
    "change",
    [
        {"cap": 10},
        {"tokens": -1},
        {"row": (0,) * 12},
        {"rungs": (6, 2)},
        {"outcomes": {"": ((0, 10**6, 1, 0),)}},
        {"outcomes": {"": ((0, 5, 1, 2),)}},
        {"outcomes": {str(i): () for i in range(100)}},
    ],
)
def test_a_header_that_would_mislead_compiled_code(saved: Path, change: dict[str, object]) -> None:
    start = block_start(saved)
    block = saved.read_bytes()[start:]
    header = read_header(saved).model_copy(update=change)
    saved.write_bytes(corpus_file._head_bytes(header) + block)
    refused(saved, "damaged")


def test_set_aside(saved: Path) -> None:
    aside = set_aside(saved)
    assert re.fullmatch(r"answers\.corpus\.refused-\d{8}T\d{6}\.\d{6}Z", aside.name)
    assert only_file(saved.parent) == aside.name
    with pytest.raises(CorpusFileError, match="cannot be set aside"):
        set_aside(saved)


# Writes that fail


def full_disk(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failed_save_keeps_the_earlier_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(corpus_file, "os", PatchedOs(call, full_disk))
    with pytest.raises(CorpusFileError, match=r"answers\.corpus: cannot be written: No space") as caught:
        save(saved, build_block(arrays([[1]]), RUNGS), "team-a", "f" * 32)
    assert caught.value.reason == "io"
    monkeypatch.undo()
    assert only_file(saved.parent) == saved.name
    assert texts_of(load(saved)) == TEXTS


class PatchedOs:
    """The module os, but for one function: pytest itself goes on with the real one."""

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        setattr(self, name, function)

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


def test_short_writes_are_continued(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def few_bytes(number: int, data: memoryview) -> int:
        return os.write(number, data[:1000])

    monkeypatch.setattr(corpus_file, "os", PatchedOs("write", few_bytes))
    save(saved, build_block(arrays(TEXTS[:9]), RUNGS), "team-a", "f" * 32)
    assert texts_of(load(saved)) == TEXTS[:9]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(CorpusFileError, match="cannot be written"):
        save(tmp_path / "no" / "c", build_block([], RUNGS), "", "")


KILLED = """
import os, sys, time
from pathlib import Path
import numpy as np
from specctl.draft import corpus_file
written = os.write
def half(number, data):
    if len(data) == 4096:
        return written(number, data)
    written(number, data[: len(data) // 2])
    print("in the middle", flush=True)
    time.sleep(60)
os.write = half
corpus = corpus_file.build_block([np.arange(500, dtype=np.int32)], (1, 2, 6))
corpus_file.save(Path(sys.argv[1]), corpus, "team-a", "f" * 32)
"""


def test_a_process_killed_in_the_middle_of_a_save(saved: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, saved], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"in the middle\n"
        child.send_signal(signal.SIGKILL)
    assert texts_of(load(saved)) == TEXTS
    (left,) = saved.parent.glob(".*.tmp")
    refused(left, "damaged")
    # It may be another process at work, so it stays until it is old.
    save(saved, build_block(arrays([[1]]), RUNGS), "team-a", "f" * 32)
    assert left.exists()
    os.utime(left, (0, 0))
    save(saved, build_block(arrays([[1]]), RUNGS), "team-a", "f" * 32)
    assert only_file(saved.parent) == saved.name


# Several processes


def read_again_and_again(path: Path, ready: object, stop: object, answers: object) -> None:
    loads = 0
    while not stop.is_set():  # type: ignore[attr-defined]
        corpus = load(path, "team-a", "abc")
        text = corpus.mem[: 2 * corpus.row[HEAD] : 2]
        values = set(text[text != SEPARATOR].tolist())
        if values != {corpus.largest_id} or corpus.tokens != 1000 * corpus.largest_id:
            answers.put("torn")  # type: ignore[attr-defined]
            return
        loads += 1
        ready.set()  # type: ignore[attr-defined]
    answers.put(loads)  # type: ignore[attr-defined]


def test_readers_see_whole_files_while_a_writer_replaces(tmp_path: Path) -> None:
    path = tmp_path / "c"
    corpora = [build_block([np.full(1000 * n, n, np.int32)], RUNGS) for n in (1, 2, 3)]
    save(path, corpora[0], "team-a", "abc")
    spawn = multiprocessing.get_context("spawn")
    stop, answers = spawn.Event(), spawn.Queue()
    ready = [spawn.Event() for _ in range(3)]
    readers = [
        spawn.Process(target=read_again_and_again, args=(path, event, stop, answers)) for event in ready
    ]
    for reader in readers:
        reader.start()
    mapped = load(path)
    assert all(event.wait(60) for event in ready)
    deadline = time.monotonic() + 1.5
    saves = 0
    while time.monotonic() < deadline:
        saves += 1
        save(path, corpora[saves % 3], "team-a", "abc")
    stop.set()
    loads = [answers.get(timeout=10) for _ in readers]
    for reader in readers:
        reader.join(10)
    assert saves > 3
    assert all(isinstance(count, int) and count > 3 for count in loads)
    assert texts_of(mapped) == [[1] * 1000]


# The tokenizer


def test_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(CorpusFileError, match=r"expected tokenizer\.json or vocabulary files"):
        fingerprint_of(tmp_path)
    with pytest.raises(CorpusFileError, match="cannot be read"):
        fingerprint_of(tmp_path / "tokenizer.json")
    (tmp_path / "vocab.json").write_text("{}")
    one = fingerprint_of(tmp_path)
    (tmp_path / "merges.txt").write_text("a b")
    two = fingerprint_of(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    three = fingerprint_of(tmp_path)
    assert three == fingerprint_of(tmp_path / "tokenizer.json") == xxhash.xxh3_128_hexdigest(b"{}")
    assert len({one, two, three}) == 3
