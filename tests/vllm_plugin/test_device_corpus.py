"""Finished outputs become the device's corpus; on CPU tensors."""

from __future__ import annotations

import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from specctl_vllm.proposers import device_corpus  # noqa: E402
from specctl_vllm.proposers.device_corpus import DeviceCorpusFeeder  # noqa: E402

from specctl.draft.chains import HEAD  # noqa: E402
from specctl.draft.suffix_index import SuffixIndexOptions, rungs_for  # noqa: E402

RUNGS = rungs_for(SuffixIndexOptions())


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_corpus, "_LEAST_PAUSE_S", 0.0)


def polled(feeder: DeviceCorpusFeeder, words: int) -> None:
    deadline = time.monotonic() + 60
    while int(feeder.corpus.row[HEAD]) != words:
        assert time.monotonic() < deadline
        feeder.poll()
        time.sleep(0.01)


def test_outputs_come_in_bit_by_bit() -> None:
    feeder = DeviceCorpusFeeder(2**17, RUNGS, torch.device("cpu"))
    feeder.poll()
    assert int(feeder.corpus.row[HEAD]) == 0
    for count in (1, 2, 3):  # each goes to the half that is not read
        feeder.add([np.arange(20, dtype=np.int32), np.empty(0, np.int32)])
        polled(feeder, 21 * count)
        start = int(feeder.corpus.row[0])
        text = feeder.corpus.words[start : start + 42 * count : 2]
        assert text.tolist() == [*range(20), -1] * count
    assert feeder.tokens == 60


def test_the_oldest_outputs_go_where_the_bytes_end() -> None:
    feeder = DeviceCorpusFeeder(2**16, RUNGS, torch.device("cpu"))
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


def test_a_failure_is_counted_and_the_corpus_stays(caplog: pytest.LogCaptureFixture) -> None:
    feeder = DeviceCorpusFeeder(2**17, RUNGS, torch.device("cpu"))
    feeder.add([np.arange(20, dtype=np.int32)])
    polled(feeder, 21)
    feeder.add([np.array([1, -5, 2], np.int32)])
    feeder.poll()
    assert feeder._thread is not None
    feeder._thread.join(60)
    feeder.poll()
    assert feeder.failures == 1
    assert int(feeder.corpus.row[HEAD]) == 21
    assert "was not renewed" in caplog.text
