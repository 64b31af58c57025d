from __future__ import annotations

import random

import numpy as np
import pytest
from draft import brute_force

from specctl.draft.calibration import MOST_MATCH
from specctl.draft.suffix_index import SuffixIndex, SuffixIndexOptions
from specctl.draft.tree import DraftTree

OPTIONS = SuffixIndexOptions(index_bytes=2**18, min_token_prob=0.01, max_spec_factor=64.0)
BUDGET = 12


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def reference(own: list[int], corpus: brute_force.Text) -> list[tuple[tuple[int, ...], float]]:
    """(path, probability) of the best BUDGET nodes, from the occurrences of the winning chain."""
    _, _, match, source = brute_force.propose(own, corpus, BUDGET, OPTIONS)
    if source == 0:
        return []
    text: brute_force.Text = own if source == 1 else corpus
    chances = brute_force.cube(brute_force.CHANCES)[source - 1]
    found = brute_force.gather(text, own, OPTIONS, source == 1, None)
    places = [place for other, place in found if other >= match]
    nodes: list[tuple[tuple[int, ...], float]] = []

    def open_nodes(path: tuple[int, ...], at: list[int], prob: float) -> None:
        at = [place for place in at if place < len(text) and text[place] is not None]
        following = [text[place] for place in at]
        for token in set(following):
            votes = following.count(token)
            chance = prob * float(chances[min(match + len(path), MOST_MATCH), votes, len(at)])
            if chance >= OPTIONS.min_token_prob and len(path) < BUDGET:
                assert token is not None
                nodes.append(((*path, token), chance))
                open_nodes((*path, token), [p + 1 for p in at if text[p] == token], chance)

    open_nodes((), places, 1.0)
    return sorted(nodes, key=lambda node: -node[1])[:BUDGET]


def paths(tree: DraftTree, row: int) -> list[tuple[tuple[int, ...], float]]:
    found: list[tuple[int, ...]] = []
    for node in range(int(tree.sizes[row])):
        parent = int(tree.parents[row, node])
        assert parent < node
        before = () if parent < 0 else found[parent]
        found.append((*before, int(tree.tokens[row, node])))
    return [(path, float(tree.probs[row, i])) for i, path in enumerate(found)]


@pytest.mark.parametrize("vocabulary", [2, 3, 9])
@pytest.mark.parametrize("source", ["own", "corpus"])
def test_as_the_reference(vocabulary: int, source: str) -> None:
    generator = random.Random(vocabulary)
    stream = [generator.randrange(vocabulary) for _ in range(200)]
    index = SuffixIndex(OPTIONS, 1, 1024)
    corpus: list[int | None] = []
    if source == "corpus":
        index.start(0, ints([]))
        index.extend(0, ints(stream[:150]))
        index.finish(0)
        index.flush()
        corpus = [*stream[:150], None]
    for end in range(3, 60, 4):
        own = stream[:end] if source == "own" else stream[120 : 120 + end // 4]
        index.start(0, ints(own))
        tree = index.propose_trees(ints([0]), ints([BUDGET]))
        index.discard(0)
        wanted = reference(own, corpus)
        got = paths(tree, 0)
        np.testing.assert_allclose([p for _, p in got], [p for _, p in wanted], rtol=1e-5)
        known = dict(wanted)
        for path, prob in got:
            assert path not in known or known[path] == pytest.approx(prob, rel=1e-5)
        assert len({path for path, _ in got}) == len(got)


def test_a_tree_expects_no_less_than_a_chain() -> None:
    stream = [1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 1, 2, 4, 6, 1, 2]
    index = SuffixIndex(OPTIONS, 1, 64)
    index.start(0, ints(stream))
    chain = index.propose_batch(ints([0]), ints([4]))
    tree = index.propose_trees(ints([0]), ints([4]))
    assert tree.probs.sum() >= chain.probs.sum()
    assert {3, 4} <= set(tree.tokens[0].tolist())


def test_behind_an_edit_the_tree_is_the_chain() -> None:
    text = list(range(100, 160))
    index = SuffixIndex(OPTIONS, 1, 256)
    index.start(0, ints([*text, *text[:20]]))
    index.propose_trees(ints([0]), ints([BUDGET]))
    index.extend(0, ints([7, text[21]]))
    chain = index.propose_batch(ints([0]), ints([BUDGET]))
    tokens, probs = chain.tokens[0].tolist(), chain.probs[0].tolist()
    tree = index.propose_trees(ints([0]), ints([BUDGET]))
    assert tokens == text[22 : 22 + BUDGET]
    assert [path for path, _ in paths(tree, 0)] == [tuple(tokens[: i + 1]) for i in range(BUDGET)]
    assert tree.probs[0].tolist() == probs


def test_nothing_known_gives_no_tree() -> None:
    index = SuffixIndex(OPTIONS, 1, 64)
    index.start(0, ints([]))
    tree = index.propose_trees(ints([0]), ints([4]))
    assert (tree.sizes.tolist(), tree.parents.tolist()) == ([0], [[-1] * 4])
