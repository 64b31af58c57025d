"""Odds of a drafted token for what it is and what it follows."""

from __future__ import annotations

import numpy as np
import pytest

from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions
from specctl.draft.token_odds import EVERY, ODDS_MOST, PLACES, TokenOdds, chance_of, note

CHANCES = np.array([0.2, 0.5, 0.9], np.float32)
SOME, OTHER, BEFORE = np.int64(7), np.int64(11), np.uint32(3)


def table(odds: TokenOdds) -> tuple[np.ndarray, np.ndarray]:
    return CHANCES, odds.odds


def met(odds: TokenOdds, token: np.int64, came_true: float, times: int, entry: int = 1) -> None:
    """Outcomes of a token behind BEFORE, a share of which came true."""
    counted = np.zeros(3 * PLACES, np.int32)
    for i in range(times):
        note(table(odds), entry, token, BEFORE, i < came_true * times, counted)
    odds.learn(counted.reshape(PLACES, 3))


def test_without_outcomes_votes_alone_count() -> None:
    for entry, chance in enumerate(CHANCES):
        assert chance_of(table(TokenOdds()), entry, SOME, BEFORE) == pytest.approx(chance, rel=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.8])
@pytest.mark.parametrize("batch", [10, 4000], ids=["small batches", "large ones"])
def test_a_token_comes_to_its_own_share(share: float, batch: int) -> None:
    odds = TokenOdds()
    for _ in range(40):
        met(odds, SOME, share, batch)
    assert chance_of(table(odds), 1, SOME, BEFORE) == pytest.approx(share, abs=0.03)


def test_tokens_differ_and_what_all_share_is_expected_of_a_new_one() -> None:
    odds = TokenOdds()
    for _ in range(40):
        met(odds, SOME, 0.1, 30)
        met(odds, OTHER, 0.3, 30)
    some, other, new = (chance_of(table(odds), 1, np.int64(token), BEFORE) for token in (SOME, OTHER, 5000))
    assert some < other < new < 0.5
    # The same odds, whatever the votes said.
    assert chance_of(table(odds), 0, SOME, BEFORE) < some < chance_of(table(odds), 2, SOME, BEFORE)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_odds_are_bounded(share: float) -> None:
    odds = TokenOdds()
    for _ in range(200):
        met(odds, SOME, share, 100)
    assert odds.odds.min() >= 1 / ODDS_MOST * 0.999
    assert odds.odds.max() <= ODDS_MOST * 1.001
    assert 0 < chance_of(table(odds), 1, SOME, BEFORE) < 1
    odds.forget()
    assert (odds.odds == 1).all()


def test_sums_do_not_depend_on_the_order() -> None:
    odds = TokenOdds()
    odds.odds[:] = np.random.default_rng(0).uniform(0.3, 3, PLACES)
    tokens = np.random.default_rng(1).integers(0, 60, 500)
    sums = []
    for order in (tokens, tokens[::-1]):
        counted = np.zeros(3 * PLACES, np.int32)
        for token in order:
            note(table(odds), 0, token, BEFORE, token % 2 == 0, counted)
        sums.append(counted)
    np.testing.assert_array_equal(*sums)
    assert sums[0][3 * EVERY] >= tokens.size


def test_drafts_follow_what_a_token_is() -> None:
    """Each context is followed by one of two tokens, a steady and a fickle one, as often as by the other."""
    index = SuffixIndex(SuffixIndexOptions(index_bytes=2**17, min_token_prob=0.0), 1, 4096)
    generator = np.random.default_rng(2)
    known = generator.integers(1000, 50_000, 400).astype(np.int32)
    known[1::2] = np.where(np.arange(200) % 2, 1, 2)
    probs: dict[int, list[float]] = {1: [], 2: []}
    for round_ in range(60):
        index.start(0, np.empty(0, np.int32))
        for at in range(0, 400, 2):
            index.extend(0, known[at : at + 1])
            tokens, chances = index.propose(0, 1)
            if round_ > 40 and tokens.size and int(tokens[0]) in probs:
                probs[int(tokens[0])].append(float(chances[0]))
            fickle = known[at + 1] == 2 and generator.random() < 0.7
            index.extend(
                0,
                generator.integers(60_000, 90_000, 1).astype(np.int32) if fickle else known[at + 1 : at + 2],
            )
        index.finish(0)
        index.flush()
    assert np.mean(probs[1]) > 0.9
    assert np.mean(probs[2]) < 0.6
