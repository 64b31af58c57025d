"""What a frozen corpus is built from, and what it then answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from draft.texts import RUNGS, TEXTS, arrays, random_texts, texts_of

from specctl.draft.chains import SEPARATOR, block_words, find, stack_hashes
from specctl.draft.frozen_corpus import build_block, merge

# What is built


def latest_end(text: Sequence[int], gram: Sequence[int]) -> int:
    ends = range(len(text) - 1, len(gram) - 2, -1)
    return next((end for end in ends if list(text[end - len(gram) + 1 : end + 1]) == list(gram)), -1)


def test_a_block_answers_as_a_search_of_the_whole_text() -> None:
    corpus = build_block(arrays(TEXTS), RUNGS)
    flat = [token for text in TEXTS for token in [*text, SEPARATOR]]
    assert corpus.mem[: 2 * len(flat) : 2].tolist() == flat
    query = [*TEXTS[3][-5:], *random_texts(1, seed=9)[0], 1234, *TEXTS[7]]
    other = build_block(arrays([query]), RUNGS)
    hashes = np.empty(len(RUNGS), np.uint64)
    hits = 0
    for at in range(len(query)):
        for rung in range(stack_hashes(other.mem, other.row, at, other.rungs, hashes)):
            hashed = hashes[rung]
            _, found = find(corpus.mem, corpus.row, corpus.rungs, rung, hashed, other.mem, other.row, at)
            assert found == latest_end(flat, query[at - RUNGS[rung] + 1 : at + 1])
            hits += found >= 0
    assert hits > len(query)


def test_counts_and_order() -> None:
    corpus = build_block(arrays([[1, 2, 3], [], [9]]), RUNGS)
    assert (corpus.tokens, corpus.documents, corpus.largest_id) == (4, 2, 9)
    assert texts_of(corpus) == [[1, 2, 3], [9]]
    assert not corpus.mem.flags.writeable
    empty = build_block([], RUNGS)
    assert (empty.tokens, empty.documents, empty.largest_id, texts_of(empty)) == (0, 0, -1, [])


def test_long_documents_are_pushed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build_block(arrays(TEXTS), RUNGS)
    monkeypatch.setattr("specctl.draft.frozen_corpus._SLICE_TOKENS", 7)
    np.testing.assert_array_equal(build_block(arrays(TEXTS), RUNGS).mem, whole.mem)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="negative"):
        build_block(arrays([[1, -1]]), RUNGS)
    with pytest.raises(ValueError, match="int64"):
        build_block([np.array([1], np.int64)], RUNGS)
    for rungs in ([], [0, 1], [2, 1], [2, 2], [17]):
        with pytest.raises(ValueError, match="rungs: expected"):
            build_block([], rungs)


# Merging


def test_merge_keeps_the_newest_of_equal_documents() -> None:
    old = build_block(arrays([[1, 2], [3], [4, 5]]), RUNGS)
    new = build_block(arrays([[6], [1, 2], [6], [4]]), RUNGS)
    assert texts_of(merge([old, new])) == [[3], [4, 5], [1, 2], [6], [4]]
    assert texts_of(merge([new])) == [[1, 2], [6], [4]]


def test_merge_drops_the_oldest_beyond_the_budget() -> None:
    texts = [[n] * 100 for n in range(8)]
    old, new = build_block(arrays(texts[:4]), RUNGS), build_block(arrays(texts[4:]), RUNGS)
    three = 4 * int(block_words(3 * 101, np.array(RUNGS, np.int64)))
    kept = merge([old, new], three)
    assert texts_of(kept) == texts[5:]
    assert kept.mem.nbytes == three
    assert texts_of(merge([old, new], three - 4)) == texts[6:]
    assert texts_of(merge([old, new], 10 * three)) == texts
    too_long = build_block(arrays([[9] * 1000]), RUNGS)
    assert texts_of(merge([old, too_long, new], three)) == texts[5:]


def test_merge_refuses() -> None:
    corpus = build_block(arrays(TEXTS), RUNGS)
    with pytest.raises(ValueError, match="at least one"):
        merge([])
    with pytest.raises(ValueError, match=r"rungs: expected \[1, 2, 6\] in all, got \[1, 2\]"):
        merge([corpus, build_block(arrays(TEXTS), (1, 2))])
    with pytest.raises(ValueError, match="max_bytes: expected at least"):
        merge([corpus], 100)
