"""Verification of trees: the law of its samples; wrong arguments, large shapes. ``test_twins`` runs
this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from specctl_kernels.verify_rejection.reference import distribution
from specctl_kernels.verify_tree import (
    NO_TOKEN,
    RULES,
    verify_greedy_tree,
    verify_tree,
)
from specctl_kernels.verify_tree.reference import verify_tree_reference, walk_down, walk_up
from support.quick_interpreter import quick_interpreter
from support.tree_batches import shaped, tree_batch
from support.tree_laws import SHAPES, emission_law, every_tree, random_models
from support.verify_tests import LEAST_CHANCE, chi_square_chance

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
BITS = 1.4426950408889634
WALKS = {"multi_candidate": walk_down, "traversal": walk_up}
DRAWS = 1_000_000 if IS_GPU else 24
"""Through the kernel; without a GPU its law is the reference's, which is enumerated and equal."""
REFERENCE_DRAWS = 150


@pytest.fixture(autouse=True, scope="module")
def interpreted_in_time() -> Iterator[None]:
    with quick_interpreter():
        yield


def run(given: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    moved = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    return tuple(result.cpu() for result in verify_tree(**moved))


def same_tree(
    requests: int, parents: list[int], logits: torch.Tensor, drafts: torch.Tensor, options: tuple[Any, ...]
) -> dict[str, Any]:
    """Requests with one shape of tree; logits [requests, rows, V], drafts [requests, rows]."""
    rows = len(parents)
    return {
        "logits": logits.reshape(-1, logits.shape[-1]), "drafts": drafts.flatten().to(torch.int32),
        "parents": torch.tensor(parents, dtype=torch.int32).repeat(requests),
        "starts": torch.arange(0, rows * requests + 1, rows, dtype=torch.int32),
        "temperature": torch.full((requests,), options[0]),
        "top_k": torch.full((requests,), options[1], dtype=torch.int32),
        "top_p": torch.full((requests,), options[2]), "min_p": torch.full((requests,), options[3]),
        "seeds": torch.arange(requests) * 7919, "positions": torch.arange(rows).repeat(requests),
        "width": rows,
    }  # fmt: skip


PLAIN = (1.0, 0, 1.0, 0.0)


@pytest.mark.parametrize("is_sampled", [True, False], ids=["sampled", "given"])
@pytest.mark.parametrize("rule", RULES)
def test_draws_are_those_of_the_enumeration(rule: str, is_sampled: bool) -> None:
    parents = SHAPES["mixed"]
    models = random_models(3, 8, 1.0)
    trees = list(every_tree(parents, models, None if is_sampled else [0, 2, 0, 2, 1, 1]))
    law = emission_law(WALKS[rule], trees)
    chances = torch.tensor([chance for chance, _ in trees], dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    drawn = torch.multinomial(chances, DRAWS, replacement=True, generator=generator)
    targets = torch.stack([tree.targets for _, tree in trees]).log().float()
    tokens = torch.tensor([tree.tokens for _, tree in trees])
    given = same_tree(DRAWS, parents, targets[drawn], tokens[drawn], PLAIN) | {"rule": rule}
    given |= {"top_k": None, "top_p": None, "min_p": None}
    if is_sampled:
        drafted = torch.stack([tree.drafted for _, tree in trees if tree.drafted is not None])
        given |= {"draft_logits": drafted.log().float(), "draft_slots": drawn.to(torch.int32)}
    emitted, _, _ = run(given)
    places = {sequence: place for place, sequence in enumerate(law)}
    digits = 4 ** torch.arange(len(parents))
    cell_of = torch.full((4 ** len(parents),), -1)
    for sequence, place in places.items():
        cell_of[int(((torch.tensor(sequence) + 1) * digits[: len(sequence)]).sum())] = place
    cells = cell_of[((emitted + 1) * digits).sum(1)]
    assert int(cells.min()) >= 0, "a sequence that no way leads to"
    seen = cells.bincount(minlength=len(law))
    assert chi_square_chance(seen, torch.tensor(list(law.values()), dtype=torch.float64)) > LEAST_CHANCE


LEVELS = torch.tensor([2.0, 0.0, 3.0, 1.0, 2.0, 0.0, float("-inf")])
ROWS_P = torch.tensor(
    [[2.0, 1.0, 0.0, -1.0, 0.5, -0.5, 1.5], [0.0, 3.0, 1.0, 1.0, -2.0, 0.25, 1.0], [1.0, 1, 1, 1, 1, 1, 1]]
)
ROWS_Q = torch.tensor([[1.0, 2.0, 0.0, 0.0, -1.0, 1.0, 0.0], [2.0, 0.0, 1.0, 2.0, -1.0, 0.0, 1.0]])
LEFT = torch.tensor([1.0, 0.5, 2.0, float("-inf"), float("-inf"), float("-inf"), float("-inf")])
LAWS: dict[str, tuple[torch.Tensor, torch.Tensor | None, tuple[float, int, float, float]]] = {
    "p is q": (ROWS_P, ROWS_P[:2], PLAIN),
    "other q": (ROWS_P, ROWS_Q, (0.8, 0, 1.0, 0.0)),
    "disjoint": (LEFT.flip(0).expand(3, -1), LEFT.expand(2, -1), PLAIN),
    "zero mass": (LEFT.expand(3, -1), ROWS_Q, PLAIN),
    "one-hot": (ROWS_P, None, PLAIN),
    "top-k 1": (ROWS_P, ROWS_Q, (1.0, 1, 1.0, 0.0)),
    "top-p": (ROWS_P, ROWS_Q, (1.0, 0, 0.8, 0.0)),
    "top-p with ties, one-hot": (LEVELS.expand(3, -1), None, (BITS, 0, 0.6, 0.0)),
    "all options, one-hot": (ROWS_P, None, (0.7, 5, 0.9, 0.05)),
    "all options": (ROWS_P, ROWS_Q, (0.7, 5, 0.9, 0.05)),
    "cold": (ROWS_P, ROWS_Q, (0.1, 0, 1.0, 0.0)),
    "hot": (ROWS_P, ROWS_Q, (100.0, 0, 0.9, 0.0)),
}
BRANCHING = [-1, 0, 0, 1, 1, 2]
DEPTHS = [0, 1, 1, 2, 2, 2]


def first_requests(given: dict[str, Any], requests: int) -> dict[str, Any]:
    by_row = ("logits", "drafts", "parents", "positions")
    sizes = dict.fromkeys(by_row, len(BRANCHING) * requests) | {"starts": requests + 1}
    return {
        k: v[: sizes.get(k, requests)] if isinstance(v, torch.Tensor) and k != "draft_logits" else v
        for k, v in given.items()
    }


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", LAWS)
def test_each_position_has_the_targets_law(case: str, rule: str) -> None:
    """A row's law depends on its depth alone here, so a position that is reached, however it was, has its
    depth's law. Without a GPU the draws are the reference's; the kernel equals it on some of them."""
    p_logits, q_logits, options = LAWS[case]
    requests = 200_000 if IS_GPU else REFERENCE_DRAWS
    generator = torch.Generator().manual_seed(13)
    drafts = torch.zeros(requests, len(BRANCHING), dtype=torch.int64)
    for row in range(3):
        children = [child for child, parent in enumerate(BRANCHING) if parent == row]
        law = torch.ones(7)  # drafts that are not sampled may come from anywhere, twice too
        if q_logits is not None:
            law = distribution(q_logits[DEPTHS[row]], options[0]).float()
        drafts[:, children] = torch.multinomial(
            law.expand(requests, -1), len(children), replacement=q_logits is None, generator=generator
        )
    logits = p_logits[DEPTHS].expand(requests, -1, -1).contiguous()
    given = same_tree(requests, BRANCHING, logits, drafts, options) | {"rule": rule}
    if q_logits is not None:
        rows_q = torch.cat([q_logits[[0, 1, 1]], torch.full((2, 7), float("nan"))])
        given |= {"draft_logits": rows_q[None], "draft_slots": torch.zeros(requests, dtype=torch.int32)}
    if IS_GPU:
        tokens, counts, _ = run(given)
    else:
        tokens, counts, _ = verify_tree_reference(**given)
        few = first_requests(given, 3)
        assert [one.tolist() for one in run(few)] == [one.tolist() for one in verify_tree_reference(**few)]
    assert int(counts.min()) >= 1
    for step in range(3):
        seen = tokens[:, step][tokens[:, step] != NO_TOKEN].bincount(minlength=7)
        assert chi_square_chance(seen, distribution(p_logits[step], *options)) > LEAST_CHANCE, step
    if case == "p is q":
        assert int(counts.min()) == 3
    if case == "disjoint":
        assert int(counts.max()) == 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("is_sampled", [False, True], ids=["given", "sampled"])
def test_sixty_four_nodes_of_each_shape(is_sampled: bool, rule: str) -> None:
    drafted = {"draft_dtype": torch.float32, "draft_columns": 80} if is_sampled else {}
    given = tree_batch(4, 80, torch.float32, "top_p", width=64, full=True, seed=3, **drafted)
    given["temperature"] = torch.tensor([0.8, 0.5, 1.0, 0.7])
    given |= {"uniforms": torch.rand(len(given["positions"]), 2, dtype=torch.float64), "rule": rule}
    want = verify_tree_reference(**given)
    assert [one.tolist() for one in run(given)] == [one.tolist() for one in want]


SLOTS = torch.zeros(2, dtype=torch.int32)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"drafts": torch.zeros(3)}, r"drafts: expected int32 or int64\[4\], contiguous, got float32\[3\]"),
    ({"parents": torch.zeros(4).long()}, r"parents: expected int32\[4\], contiguous, got int64\[4\]"),
    ({"parents": torch.zeros(3).int()}, r"parents: expected int32\[4\], contiguous, got int32\[3\]"),
    ({"starts": torch.zeros(3, dtype=torch.int64)}, r"starts: expected int32\[3\], contiguous, got int64"),
    ({"logits": torch.zeros(9, 4).T}, "with contiguous rows"),
    ({"width": 0}, "width: expected 1 to 256, got 0"),
    ({"width": 257}, "width: expected 1 to 256, got 257"),
    ({"rule": "chain"}, "rule: expected multi_candidate or traversal, got chain"),
    ({"temperature": torch.zeros(3)}, r"temperature: expected float32\[2\], contiguous, got float32\[3\]"),
    ({"top_k": torch.ones(2)}, r"top_k: expected int32\[2\], contiguous, got float32\[2\]"),
    ({"uniforms": torch.zeros(4, 2)}, r"uniforms: expected float64\[4, 2\], contiguous, got float32"),
    ({"draft_slots": SLOTS}, "expected both or neither, got draft_slots alone"),
    ({"draft_logits": torch.zeros(2, 1, 9), "draft_slots": SLOTS}, r"\[slots, 2 or more, 9 or fewer\]"),
]


@pytest.mark.parametrize(
    ("wrong", "message"), WRONG, ids=lambda one: next(iter(one)) if isinstance(one, dict) else ""
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], message: str) -> None:
    given = {
        "logits": torch.zeros(4, 9), "drafts": torch.zeros(4, dtype=torch.int32),
        "parents": torch.tensor([-1, 0, -1, 0], dtype=torch.int32),
        "starts": torch.tensor([0, 2, 4], dtype=torch.int32), "temperature": torch.ones(2), "top_k": None,
        "top_p": torch.ones(2), "min_p": None, "seeds": torch.zeros(2, dtype=torch.int64),
        "positions": torch.zeros(4, dtype=torch.int64), "width": 3,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        verify_tree(**given | wrong)
    four = {
        k: v for k, v in (given | wrong).items() if k in ("logits", "drafts", "parents", "starts", "width")
    }
    if wrong.keys() <= {"drafts", "parents", "logits", "width", "starts"}:
        with pytest.raises(ValueError, match=r"expected"):
            verify_greedy_tree(**four)


@pytest.mark.skipif(not IS_GPU, reason="needs 5 GB of device memory")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_more_than_two_to_the_thirty_one_logits(temperature: float) -> None:
    requests, rows, vocabulary = 205, 41, 262_144
    logits = torch.zeros(requests * rows, vocabulary, dtype=torch.bfloat16, device=DEVICE)
    logits[-rows, 5] = logits[-1, -1] = 100.0
    drafts = torch.full((requests, rows), 7, dtype=torch.int32)
    drafts[-1, -1] = 5
    given = same_tree(requests, shaped("star", rows), torch.zeros(1, 1), drafts, (temperature, 0, 0.9, 0.0))
    given |= {"logits": logits}
    tokens, counts, paths = run(given)
    assert tokens[-1, :2].tolist() == [5, vocabulary - 1]
    assert paths[-1, :2].tolist() == [0, rows - 1]
    assert int(counts[-1]) == 2
