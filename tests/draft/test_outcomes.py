"""Probabilities follow what became of drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specctl.draft.calibration import ENTRIES, chances, refit
from specctl.draft.corpus_file import load
from specctl.draft.frozen_corpus import build_block, merge
from specctl.draft.keeper import CorpusKeeper
from specctl.draft.outcomes import MOST_TOKENS, Counts, added, checked_counts
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions

OPTIONS = SuffixIndexOptions(index_bytes=2**17, min_token_prob=0.0, threads=2)
BUDGET = 6


def ints(values: object) -> np.ndarray:
    return np.array(values, np.int32)


def walks(certainty: float, seed: int) -> Iterator[np.ndarray]:
    """Texts that go on as one long text does with this probability, and else anywhere in it."""
    generator = np.random.default_rng(seed)
    known = generator.integers(0, 50_000, 1000)
    while True:
        jumps = np.where(generator.random(240) < certainty, 1, generator.integers(2, 1000, 240))
        yield known[np.cumsum(jumps) % 1000].astype(np.int32)


def replay(
    index: SuffixIndex, texts: Iterator[np.ndarray], steps: int, traffic_class: str = ""
) -> list[tuple[float, bool]]:
    """Of each drafted token: its probability, and whether it came true."""
    estimates: list[tuple[float, bool]] = []
    while steps > 0:
        text = next(texts)
        index.start(0, text[:20], traffic_class=traffic_class)
        at = 20
        while at + 1 < text.size:
            tokens, probs = index.propose(0, min(BUDGET, text.size - at - 1))
            true = text[at : at + tokens.size] == tokens
            accepted = int(np.argmin(np.append(true, False)))
            estimates += [(float(prob), j < accepted) for j, prob in enumerate(probs)]
            index.extend(0, text[at : at + accepted + 1])
            at += accepted + 1
            steps -= 1
        index.finish(0)
    return estimates


def calibration_error(estimates: list[tuple[float, bool]]) -> float:
    estimate, came_true = np.array(estimates, np.float64).T
    at = np.minimum((estimate * 10).astype(int), 9)
    return float(
        sum(abs((estimate - came_true)[at == place].sum()) for place in np.unique(at)) / len(estimates)
    )


def test_two_classes_that_err_in_opposite_directions() -> None:
    kinds = {"sure": walks(0.9, 1), "unsure": walks(0.6, 2)}
    index = SuffixIndex(OPTIONS, 1, 1024)
    errors: dict[str, tuple[float, float]] = {}
    for kind, texts in kinds.items():
        before = calibration_error(replay(index, texts, 200, kind))
        replay(index, texts, 2000, kind)
        errors[kind] = before, calibration_error(replay(index, texts, 2000, kind))
    np.testing.assert_array_equal(index.outcomes.chances_of(), chances())
    assert max(after for _, after in errors.values()) <= 0.05, errors
    assert all(before > after for before, after in errors.values()), errors


@pytest.mark.parametrize("rows", [1, 80])
def test_outcomes_are_those_of_the_text(rows: int) -> None:
    """Also when two threads share a batch; a token that is not known of yet is none."""
    generator = np.random.default_rng(rows)
    index = SuffixIndex(OPTIONS, rows, 4096)
    for slot in range(rows):
        index.start(slot, generator.integers(0, 3, 40).astype(np.int32))
    slots, offsets = ints(range(rows)), ints([5 * row for row in range(rows + 1)])
    drafted = accepted = 0
    waiting: list[np.ndarray] = []
    for _ in range(12):
        given = generator.integers(0, 3, (rows, 5)).astype(np.int32)
        for draft, emitted in zip(waiting, given, strict=bool(waiting)):
            true = draft[:5] == emitted[: draft.size]
            run = int(np.argmin(np.append(true, False)))
            accepted += run
            drafted += min(run + 1, true.size)
        index.extend_batch(slots, given.ravel(), offsets)
        batch = index.propose_batch(slots, np.full(rows, 7, np.int32))
        waiting = [tokens[:length].copy() for tokens, length in zip(batch.tokens, batch.lengths, strict=True)]
    (rows_of,) = index.outcomes.take().values()
    assert rows_of[:, 2:].sum(axis=0).tolist() == [drafted, accepted]
    assert index.outcomes.take() == {}


def test_a_slot_forgets_the_draft_of_its_last_request() -> None:
    index = SuffixIndex(OPTIONS, 1, 1024)
    for _ in range(3):
        index.start(0, ints([1, 2, 3] * 5))
        assert index.propose(0, 4)[0].size == 4
        index.discard(0)
    assert index.outcomes.take() == {}


def test_without_outcomes_the_table_is_the_built_in_one() -> None:
    for source in (0, 1):
        table = refit(source, np.zeros((ENTRIES, 2)))
        np.testing.assert_allclose(table, chances()[source].clip(3e-4, 1 - 3e-4), rtol=1e-5)


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("tokens", [1, MOST_TOKENS])
def test_a_table_is_always_of_probabilities(share: float, tokens: int) -> None:
    counts = np.zeros((ENTRIES, 2))
    counts[np.random.default_rng(tokens).integers(0, ENTRIES, 20)] = tokens, share * tokens
    for source in (0, 1):
        table = refit(source, counts)
        assert ((table > 0) & (table < 1)).all()


def test_classes_beyond_the_most_share_one_table() -> None:
    index = SuffixIndex(OPTIONS, 1, 64)
    rows = [index.outcomes.class_of(f"kind-{i}") for i in range(40)]
    assert rows[:2] == [1, 2]
    assert rows[-1] == 0
    assert index.outcomes.class_of("x" * 10_000) == 0


def test_counts_are_bounded() -> None:
    many: Counts = {"a": np.array([[0, 700, 6000, 2000], [1, 700, 10, 5]])}
    (rows,) = added([many, many, many]).values()
    assert rows.tolist() == [[0, 700, 4500, 1500], [1, 700, 30, 15]]


@pytest.mark.parametrize(
    "rows",
    [[(2, 0, 1, 0)], [(0, ENTRIES, 1, 0)], [(0, -1, 1, 0)], [(0, 5, 1, 2)], [(0, 5, 2**40, 0)],
     [(0, 5, 1, -1)], [(1, 5, 1, 0), (1, 5, 1, 1)]],
)  # fmt: skip
def test_counts_that_cannot_be(rows: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="outcomes: expected"):
        checked_counts({"": rows})


def test_outcomes_outlive_the_server(tmp_path: Path) -> None:
    """Two servers with one file add up theirs; a third drafts with both's."""
    path = tmp_path / "corpus"
    parts: list[Counts] = []
    for seed in (1, 2):
        index = SuffixIndex(OPTIONS, 1, 1024)
        kept = CorpusKeeper(index, path, "f", 2**22, save_every_s=1e9)
        kept.open()
        replay(index, walks(0.7, seed), 300, "chat")
        kept.close()
        parts.append(load(path).outcomes)
    assert parts[1]["chat"][:, 2].sum() > parts[0]["chat"][:, 2].sum() > 50
    third = SuffixIndex(OPTIONS, 1, 1024)
    CorpusKeeper(third, path, "f", 2**22, save_every_s=1e9).open()
    assert not np.array_equal(third.outcomes.chances_of("chat"), chances())
    np.testing.assert_array_equal(third.outcomes.chances_of(), chances())
    fourth = SuffixIndex(OPTIONS, 1, 1024)
    fourth.attach(load(path))
    np.testing.assert_array_equal(fourth.outcomes.chances_of("chat"), third.outcomes.chances_of("chat"))


def test_what_was_not_saved_stays_when_a_file_comes() -> None:
    index = SuffixIndex(OPTIONS, 1, 1024)
    replay(index, walks(0.5, 3), 200)
    learnt = index.outcomes.chances_of()
    index.attach(build_block([], index.rungs))
    assert not np.array_equal(index.outcomes.chances_of(), chances())
    counts = index.outcomes.take()
    index.attach(build_block([], index.rungs))
    np.testing.assert_allclose(index.outcomes.chances_of(), refitted(chances()), rtol=1e-6)
    index.attach(replace(build_block([], index.rungs), outcomes=counts))
    np.testing.assert_allclose(index.outcomes.chances_of(), learnt, atol=0.1)


def refitted(table: np.ndarray) -> np.ndarray:
    return np.stack([refit(source, np.zeros((ENTRIES, 2))) for source in range(len(table))])


def test_merged_corpora_add_their_outcomes() -> None:
    outcomes = {"": np.array([[0, 700, 3, 1]]), "a": np.array([[1, 9, 1, 1]])}
    one = replace(build_block([ints([1, 2])], [1, 2]), outcomes=outcomes)
    other = replace(build_block([ints([3, 4])], [1, 2]), outcomes={"": np.array([[0, 700, 2, 2]])})
    found = {name: rows.tolist() for name, rows in merge([one, other]).outcomes.items()}
    assert found == {"": [[0, 700, 5, 3]], "a": [[1, 9, 1, 1]]}
