"""Tokens of one namespace are never proposed to another."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions

BYTES = 2**20


def ints(values: range | list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def answer(index: SuffixIndex, output: range, namespace: str) -> None:
    index.start(0, ints([]), namespace)
    index.extend(0, ints(output))
    index.finish(0)
    index.flush()


def is_found(index: SuffixIndex, context: range, namespace: str) -> bool:
    index.start(0, ints(context), namespace)
    found = bool(index.propose_batch(ints([0]), ints([4])).lengths[0])
    index.discard(0)
    return found


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["", "a", "b", "c", "d"]), max_size=12), st.integers(1, 4))
def test_never_across(names: list[str], max_namespaces: int) -> None:
    index = SuffixIndex(SuffixIndexOptions(index_bytes=BYTES, max_namespaces=max_namespaces), 1, 1024)
    for i, name in enumerate(names):
        answer(index, range(1000 * i, 1000 * i + 60), name)
        for j, other in enumerate(names[: i + 1]):
            found = is_found(index, range(1000 * j, 1000 * j + 20), name)
            assert not found or other == name
            assert found or other != name or name != ""
        assert index.corpus_bytes <= BYTES


def test_a_request_in_flight_keeps_its_corpus() -> None:
    index = SuffixIndex(SuffixIndexOptions(index_bytes=BYTES, max_namespaces=2), 2, 1024)
    answer(index, range(60), "a")
    index.start(1, ints(range(20)), "a")
    answer(index, range(1000, 1060), "b")
    assert not is_found(index, range(1000, 1020), "b")
    assert index.propose_batch(ints([1]), ints([4])).tokens[0].tolist() == [20, 21, 22, 23]


def test_one_namespace_has_no_corpus_beside_the_shared_one() -> None:
    index = SuffixIndex(SuffixIndexOptions(index_bytes=BYTES), 1, 1024)
    answer(index, range(60), "")
    answer(index, range(1000, 1060), "a")
    assert not is_found(index, range(1000, 1020), "a")
    assert is_found(index, range(20), "")
