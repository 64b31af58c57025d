"""Finished outputs become the device's corpus; on CPU tensors."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from specctl_vllm.proposers import device_corpus  # noqa: E402
from specctl_vllm.proposers.device_corpus import DeviceCorpusFeeder  # noqa: E402
from specctl_vllm.proposers.device_outcomes import DeviceOutcomes  # noqa: E402

from specctl.draft.chains import HEAD  # noqa: E402
from specctl.draft.frozen_corpus import build_block  # noqa: E402
from specctl.draft.keeper import CorpusKeeper  # noqa: E402
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions, rungs_for  # noqa: E402

RUNGS = rungs_for(SuffixIndexOptions())


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_corpus, "_LEAST_PAUSE_S", 0.0)


def feeder_of(max_bytes: int) -> DeviceCorpusFeeder:
    device = torch.device("cpu")
    return DeviceCorpusFeeder(max_bytes, RUNGS, device, DeviceOutcomes(1, 4, device, is_learning=True))


def polled(feeder: DeviceCorpusFeeder, words: int) -> None:
    deadline = time.monotonic() + 60
    while int(feeder.corpus.row[HEAD]) != words:
        assert time.monotonic() < deadline
        feeder.poll()
        time.sleep(0.01)


def test_outputs_come_in_bit_by_bit() -> None:
    feeder = feeder_of(2**17)
    feeder.poll()
    assert int(feeder.corpus.row[HEAD]) == 0
    for count in (1, 2, 3):  # each goes to the half that is not read
        feeder.add([np.arange(20, dtype=np.int32), np.empty(0, np.int32)])
        polled(feeder, 21 * count)
        start = int(feeder.corpus.row[0])
        text = feeder.corpus.words[start : start + 42 * count : 2]
        assert text.tolist() == [*range(20), -1] * count
    assert feeder.tokens == 60


def test_the_table_is_that_of_the_outcomes_in_a_file() -> None:
    """Uploaded to where a captured graph reads it."""
    feeder = feeder_of(2**17)
    address, built_in = feeder._outcomes.chances.data_ptr(), feeder._outcomes.chances.clone()
    outcomes = {"chat": np.array([[0, 700, 90, 10]]), "sql": np.array([[1, 700, 90, 80]])}
    feeder.attach(replace(build_block([], RUNGS), outcomes=outcomes))
    index = SuffixIndex(SuffixIndexOptions(index_bytes=2**17), 1, 64)
    both = {"": np.concatenate(list(outcomes.values()))}
    index.attach(replace(build_block([], RUNGS), outcomes=both))
    np.testing.assert_array_equal(feeder._outcomes.chances.numpy(), index.outcomes.chances_of())
    assert feeder._outcomes.chances.data_ptr() == address
    assert not torch.equal(feeder._outcomes.chances, built_in)


def test_the_oldest_outputs_go_where_the_bytes_end() -> None:
    feeder = feeder_of(2**16)
    outputs = [np.full(300, i, np.int32) for i in range(20)]
    feeder.add(outputs[:10])
    feeder.add(outputs[10:])
    feeder.poll()
    assert feeder._thread is not None
    feeder._thread.join(60)
    feeder.poll()
    start, head = int(feeder.corpus.row[0]), int(feeder.corpus.row[HEAD])
    text = feeder.corpus.words[start : start + 2 * head : 2]
    assert 0 < head < 20 * 301
    assert text[-2] == 19
    assert head % 301 == 0
    assert feeder.failures == 0


def test_an_output_that_is_none_is_counted_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    feeder = feeder_of(2**17)
    feeder.add([np.arange(20, dtype=np.int32), np.array([1, -5, 2], np.int32)])
    feeder.add([np.zeros(2**17, np.int32)])  # longer than any corpus of this size
    feeder.add([np.arange(4, dtype=np.int32)])
    polled(feeder, 26)
    assert feeder.failures == 1
    assert "was left out" in caplog.text


def test_a_failed_build_is_counted_and_the_corpus_stays(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeder = feeder_of(2**17)
    feeder.add([np.arange(20, dtype=np.int32)])
    polled(feeder, 21)
    with monkeypatch.context() as broken:

        def no_room(mem: object, row: object) -> None:
            raise RuntimeError("no memory")

        broken.setattr(feeder.corpus, "stage", no_room)
        feeder.add([np.arange(5, dtype=np.int32)])
        feeder.poll()
        assert feeder._thread is not None
        feeder._thread.join(60)
        feeder.poll()
    assert feeder.failures == 1
    assert int(feeder.corpus.row[HEAD]) == 21
    assert "was not renewed" in caplog.text
    feeder.add([np.arange(5, dtype=np.int32)])
    polled(feeder, 33)  # with what came in meanwhile


def words_of(feeder: DeviceCorpusFeeder) -> list[int]:
    start, head = int(feeder.corpus.row[0]), int(feeder.corpus.row[HEAD])
    return feeder.corpus.words[start : start + 2 * head : 2].tolist()


def kept_in(feeder: DeviceCorpusFeeder, path: Path) -> CorpusKeeper:
    keeper = CorpusKeeper(feeder, path, "fingerprint", feeder.half_bytes, save_every_s=0.0)
    keeper.open()
    return keeper


def saved(keeper: CorpusKeeper) -> None:
    """One save, and what it wrote attached."""
    keeper.poll()
    assert keeper._thread is not None
    keeper._thread.join(60)
    keeper.poll()


def test_a_file_keeps_what_the_device_learnt_and_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    first, second = (feeder_of(2**18) for _ in range(2))
    mine, other = kept_in(first, path), kept_in(second, path)
    first.add([np.arange(20, dtype=np.int32)])
    polled(first, 21)
    saved(mine)
    first.add([np.arange(100, 107, dtype=np.int32)])  # newer than the file
    polled(first, 29)
    assert words_of(first) == [*range(20), -1, *range(100, 107), -1]

    second.add([np.arange(50, 55, dtype=np.int32)])
    saved(other)  # reads what the first one wrote
    polled(second, 27)
    assert words_of(second) == [*range(20), -1, *range(50, 55), -1]

    mine.close()
    third = feeder_of(2**18)
    kept_in(third, path)
    polled(third, 35)
    assert words_of(third) == [*range(20), -1, *range(50, 55), -1, *range(100, 107), -1]
    assert (first.failures, second.failures, third.failures) == (0, 0, 0)


def test_the_file_is_left_out_first_where_the_bytes_end(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    writer = feeder_of(2**18)
    keeper = kept_in(writer, path)
    writer.add([np.full(300, i, np.int32) for i in range(8)])
    keeper.close()
    reader = feeder_of(2**16)
    kept_in(reader, path)
    reader.poll()
    reader.add([np.full(300, 90 + i, np.int32) for i in range(2)])
    deadline = time.monotonic() + 60
    while reader._learnt.end + reader._file.size != reader.tokens // 300 * 301 or reader._fresh_tokens:
        assert time.monotonic() < deadline
        reader.poll()
        time.sleep(0.01)
    held = words_of(reader)[::301]
    assert held == [*range(8), 90, 91][-len(held) :]
    assert 2 <= len(held) < 10
    assert reader._learnt.since(0).size == 2 * 301
