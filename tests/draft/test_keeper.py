from __future__ import annotations

import fcntl
from pathlib import Path

import numpy as np
import pytest

from specctl.draft.corpus_file import load
from specctl.draft.frozen_corpus import documents_of
from specctl.draft.keeper import CorpusKeeper
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions

OPTIONS = SuffixIndexOptions(index_bytes=2**20)


def ints(values: range | list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def keeper(index: SuffixIndex, path: Path, fingerprint: str = "f") -> CorpusKeeper:
    return CorpusKeeper(index, path, fingerprint, 2**20, save_every_s=0.0)


def answer(index: SuffixIndex, output: range, namespace: str = "") -> None:
    index.start(0, ints([]), namespace)
    index.extend(0, ints(output))
    index.finish(0)
    index.flush()


def source_of(index: SuffixIndex, context: range, namespace: str = "") -> int:
    index.start(0, ints(context), namespace)
    source = int(index.propose_batch(ints([0]), ints([4])).source[0])
    index.discard(0)
    return source


def test_what_was_learnt_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    first = SuffixIndex(OPTIONS, 1, 1024)
    kept = keeper(first, path)
    kept.open()
    answer(first, range(100, 160))
    answer(first, range(200, 260), namespace="tenant")
    kept.close()
    second = SuffixIndex(OPTIONS, 1, 1024)
    keeper(second, path).open()
    assert source_of(second, range(100, 120)) == 3
    assert source_of(second, range(200, 220)) == 0
    assert source_of(second, range(100, 120), namespace="tenant") == 0


def test_two_processes_learn_from_each_other(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    indexes = [SuffixIndex(OPTIONS, 1, 1024) for _ in range(2)]
    keepers = [keeper(index, path) for index in indexes]
    for i, index in enumerate(indexes):
        answer(index, range(100 * (i + 1), 100 * (i + 1) + 50))
        keepers[i].poll()
        assert keepers[i]._thread is not None
        keepers[i]._thread.join()
        keepers[i].poll()
    assert source_of(indexes[1], range(100, 120)) == 3
    assert source_of(indexes[0], range(200, 220)) == 0
    answer(indexes[0], range(300, 350))
    keepers[0].close()
    keepers[0].poll()
    assert source_of(indexes[0], range(200, 220)) == 3
    assert len(list(documents_of(load(path)))) == 3


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    path.write_bytes(b"not a corpus at all" * 1000)
    index = SuffixIndex(OPTIONS, 1, 1024)
    kept = keeper(index, path)
    kept.open()
    assert not path.exists()
    assert [p.name.startswith("corpus.refused-") for p in tmp_path.iterdir()] == [True]
    answer(index, range(50))
    kept.close()
    assert load(path).documents == 1


def test_the_file_of_another_tokenizer_is_neither_used_nor_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    index = SuffixIndex(OPTIONS, 1, 1024)
    answer(index, range(50))
    keeper(index, path, "ours").close()
    before = path.read_bytes()
    other = SuffixIndex(OPTIONS, 1, 1024)
    kept = keeper(other, path, "theirs")
    kept.open()
    assert source_of(other, range(20)) == 0
    answer(other, range(60, 90))
    kept.poll()
    kept.close()
    assert path.read_bytes() == before


def test_a_full_disk_keeps_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "corpus"
    index = SuffixIndex(OPTIONS, 1, 1024)
    answer(index, range(50))
    kept = keeper(index, path)
    kept.poll()
    assert kept._thread is not None
    kept._thread.join()
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specctl.draft.corpus_file._write", full)
    answer(index, range(60, 90))
    kept.close()
    assert (path.read_bytes(), kept.failures) == (before, 1)
    # What the failed save was to hold is in the next one.
    monkeypatch.undo()
    kept.is_open = True
    kept.close()
    assert len(list(documents_of(load(path)))) == 2


def test_any_failure_of_a_save_is_counted_and_its_outputs_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = SuffixIndex(OPTIONS, 1, 1024)
    answer(index, range(50))
    kept = keeper(index, tmp_path / "corpus")

    def failing(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("specctl.draft.keeper.build_text", failing)
    kept.poll()
    assert kept._thread is not None
    kept._thread.join()
    monkeypatch.undo()
    answer(index, range(60, 90))
    kept.close()
    assert kept.failures == 1
    assert load(tmp_path / "corpus").documents == 2


def test_a_lock_that_another_holds_ends_the_save_and_not_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specctl.draft.keeper.LOCK_PATIENCE_S", 0.1)
    path, index = tmp_path / "corpus", SuffixIndex(OPTIONS, 1, 1024)
    answer(index, range(50))
    kept = keeper(index, path)
    with (tmp_path / ".corpus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept.close()
    assert (kept.failures, path.exists()) == (1, False)
    kept.is_open = True
    kept.close()
    assert load(path).documents == 1
    assert (tmp_path / ".corpus.lock").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_read_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", denied)
    kept = keeper(SuffixIndex(OPTIONS, 1, 1024), tmp_path / "corpus")
    kept.open()
    assert (kept.is_open, kept.failures) == (False, 1)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever else may write to the folder cannot have another file made or changed."""
    path, index, victim = tmp_path / "corpus", SuffixIndex(OPTIONS, 1, 1024), tmp_path / "victim"
    victim.touch(mode=0o644)
    (tmp_path / ".corpus.lock").symlink_to(victim)
    answer(index, range(50))
    kept = keeper(index, path)
    kept.close()
    assert (kept.failures, path.exists()) == (1, False)
    assert victim.stat().st_mode & 0o777 == 0o644


def test_servers_of_two_versions_do_not_set_aside_each_others_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, index = tmp_path / "corpus", SuffixIndex(OPTIONS, 1, 1024)
    kept = keeper(index, path)
    kept.open()
    answer(index, range(50))
    with monkeypatch.context() as newer:
        newer.setattr("specctl.draft.corpus_file.CHAINS_LAYOUT", 99)
        other = SuffixIndex(OPTIONS, 1, 1024)
        answer(other, range(60, 90))
        keeper(other, path).close()
    written = path.read_bytes()
    kept.close()
    assert (kept.is_open, kept.failures) == (False, 1)
    assert path.read_bytes() == written
    assert list(tmp_path.glob("*.refused-*")) == []
