"""Documents packed one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from draft.texts import RUNGS, arrays

from specctl.draft.chains import SEPARATOR, block_words
from specctl.draft.document_text import GrowingText, newest_start, packed
from specctl.draft.frozen_corpus import build_text, words_within


def test_packed_documents_end_with_a_separator_and_empty_ones_are_left_out() -> None:
    text = packed(arrays([[1, 2], [], [3]]))
    assert text.dtype == np.uint32
    assert text.tolist() == [1, 2, SEPARATOR, 3, SEPARATOR]
    assert packed([]).size == 0


@pytest.mark.parametrize(
    "bad", [np.array([1, -1], np.int32), np.array([1], np.int64), np.zeros((1, 2), np.int32)]
)
def test_what_is_no_document_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="document: expected"):
        packed([bad])


@pytest.mark.parametrize(
    ("words", "start"), [(0, 8), (1, 8), (2, 6), (4, 6), (5, 3), (7, 3), (8, 0), (99, 0)]
)
def test_the_newest_documents_that_fit(words: int, start: int) -> None:
    assert newest_start(packed(arrays([[1, 2], [3, 4], [5]])), words) == start


def test_nothing_is_the_newest_of_nothing() -> None:
    assert newest_start(np.empty(0, np.uint32), 10) == 0


def test_a_growing_text_is_what_was_appended_less_what_was_dropped() -> None:
    rng = np.random.default_rng(0)
    text, whole, ends = GrowingText(), np.empty(0, np.uint32), [0]
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(300):
        document = rng.integers(0, 1000, rng.integers(1, 2000)).astype(np.int32)
        text.append(document)
        whole = np.concatenate((whole, packed([document])))
        ends.append(whole.size)
        if rng.random() < 0.3:
            text.drop_before(int(rng.choice(ends)))
        position = int(rng.choice(ends))
        given = text.since(position)
        np.testing.assert_array_equal(given, whole[max(position, text.start) :])
        assert text.end == whole.size
        seen.append((given, given.copy()))
    for given, then in seen:
        np.testing.assert_array_equal(given, then)


def test_dropping_beyond_the_end_leaves_nothing() -> None:
    text = GrowingText()
    text.append(np.arange(3, dtype=np.int32))
    text.drop_before(99)
    assert (text.start, text.end, text.since(0).size, text.since(99).size) == (4, 4, 0, 0)


def test_a_text_is_refused_where_it_is_none() -> None:
    with pytest.raises(ValueError, match="separator at its end"):
        build_text(np.array([1, 2], np.uint32), RUNGS)
    with pytest.raises(ValueError, match="expected ids"):
        build_text(np.array([2**31, SEPARATOR], np.uint32), RUNGS)


@pytest.mark.parametrize("max_bytes", [100, 4096, 4097, 100_000])
def test_the_most_words_of_a_block(max_bytes: int) -> None:
    words, rungs = words_within(RUNGS, max_bytes), np.array(RUNGS, np.int64)
    assert words == 0 or 4 * block_words(max(words, 64), rungs) <= max_bytes
    assert 4 * block_words(max(words + 1, 64), rungs) > max_bytes
