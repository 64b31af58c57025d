"""Trees by their links: the tokens of ``verify_tree``, in the engine's places. ``test_twins`` runs this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from specctl_kernels.verify_tree import (
    verify_greedy_linked_trees,
    verify_greedy_tree,
    verify_linked_trees,
    verify_tree,
)
from specctl_kernels.verify_tree.reference import by_row_reference
from support.quick_interpreter import quick_interpreter
from support.sglang_batches import links_of
from support.tree_batches import tree_batch
from support.verify_tests import in_silence, poison_new_memory

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True, scope="module")
def interpreted_in_time() -> Iterator[None]:
    with quick_interpreter():
        yield


poisoned = pytest.fixture(autouse=True)(poison_new_memory)


def moved(given: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}


def batch(requests: int, rows: int, vocabulary: int, options: str = "none", **named: Any) -> dict[str, Any]:
    """Of requests with so many rows; every fourth's last ones are not in its tree."""
    given = tree_batch(
        requests, vocabulary, named.pop("dtype", torch.float32), options, width=rows, full=True, **named
    )
    for req in range(3, requests, 4):
        given["parents"][req * rows + rows // 2 + 1 : (req + 1) * rows] = -1
    return given


def linked(given: dict[str, Any], kind: torch.dtype = torch.int64) -> dict[str, Any]:
    """The same by its links."""
    rows = given["width"]
    links = [links_of(parents) for parents in given["parents"].view(-1, rows).tolist()]
    first, sibling = (torch.tensor([one[i] for one in links], dtype=kind) for i in (0, 1))
    other = {name: value for name, value in given.items() if name not in ("parents", "starts", "width")}
    return other | {"first_child": first.view(-1, rows), "next_sibling": sibling.view(-1, rows)}


def greedy(given: dict[str, Any]) -> dict[str, Any]:
    names = ("logits", "drafts", "parents", "starts", "width", "first_child", "next_sibling")
    return {name: given[name] for name in names if name in given}


def equal(verifiers: tuple[Any, Any], plain: dict[str, Any], by_links: dict[str, Any], depth: int) -> None:
    whole, ours = verifiers
    tokens = (one.cpu() for one in whole(**moved(plain)))
    want = by_row_reference(*tokens, plain["width"], depth)
    got = ours(**moved(by_links), depth=depth)
    assert [one.dtype for one in got] == [torch.int32] * 3
    assert [one.tolist() for one in got] == [one.tolist() for one in want]


GREEDY, SAMPLED = (verify_greedy_tree, verify_greedy_linked_trees), (verify_tree, verify_linked_trees)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize(
    ("requests", "rows", "vocabulary", "depth"),
    [
        (0, 3, 9, 3),
        (1, 1, 7, 1),
        (1, 2, 97, 5),
        (5, 7, 97, 7),
        (9, 16, 40, 4),
        (3, 17, 5000, 40),
        (1, 64, 9, 20),
    ],
    ids=str,
)
def test_greedy_trees(requests: int, rows: int, vocabulary: int, depth: int, kind: torch.dtype) -> None:
    given = batch(requests, rows, vocabulary)
    equal(GREEDY, greedy(given), greedy(linked(given, kind)), depth)


@in_silence
@pytest.mark.parametrize("options", ["none", "top_k", "top_p", "min_p", "mixed"])
@pytest.mark.parametrize(
    ("requests", "rows", "vocabulary", "dtype"),
    [
        (1, 1, 7, torch.float32),
        (5, 6, 97, torch.bfloat16),
        (2, 18, 41, torch.float16),
        (3, 9, 4099, torch.float32),
    ],
    ids=str,
)
def test_sampled_trees(requests: int, rows: int, vocabulary: int, dtype: torch.dtype, options: str) -> None:
    given = batch(requests, rows, vocabulary, options, dtype=dtype)
    if given["top_k"] is not None:
        given["top_k"][given["top_k"] <= 1] = 2
    equal(SAMPLED, given, linked(given), rows)


def test_a_request_with_top_k_1_is_greedy_whatever_its_temperature() -> None:
    given = batch(8, 5, 50, "mixed", seed=2)
    given["top_k"] = torch.tensor([1, 9] * 4, dtype=torch.int32)
    given["temperature"] = torch.full((8,), 1.3)
    cold = given | {"temperature": torch.tensor([0.0, 1.3] * 4)}
    want = by_row_reference(*(one.cpu() for one in verify_tree(**moved(cold))), 5, 5)
    got = verify_linked_trees(**moved(linked(given)), depth=5)
    assert [one.tolist() for one in got] == [one.tolist() for one in want]


@in_silence
def test_a_row_without_a_distribution_emits_token_0_behind_the_root() -> None:
    given = batch(4, 4, 9)
    given["temperature"][:] = 1.0
    given["logits"][4:8] = float("nan")
    equal(SAMPLED, given, linked(given), 4)
    emitted, counts, index = verify_linked_trees(**moved(linked(given)), depth=4)
    assert (emitted[4:8].tolist(), int(counts[1]), index[1].tolist()) == ([0] * 4, 1, [4, -1, -1, -1])


LINKS = torch.full((2, 2), -1)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"first_child": LINKS[0]}, r"first_child: expected \[requests, rows\], got \[2\]"),
    (
        {"first_child": LINKS.float()},
        r"first_child: expected int32 or int64\[2, 2\], contiguous, got float32",
    ),
    ({"next_sibling": LINKS[:1]}, r"next_sibling: expected int32 or int64\[2, 2\], contiguous, got int64\[1"),
    ({"logits": torch.zeros(3, 9)}, r"logits: expected 2 x 2 rows, got \[3, 9\]"),
    ({"logits": torch.zeros(9, 4).T}, "with contiguous rows"),
    ({"drafts": torch.zeros(4)}, r"drafts: expected int32 or int64\[4\], contiguous, got float32\[4\]"),
    ({"depth": 0}, "depth: expected 1 at least, got 0"),
    ({"first_child": torch.zeros(1, 300).int()}, "width: expected 1 to 256, got 300"),
    ({"temperature": torch.zeros(3)}, r"temperature: expected float32\[2\], contiguous, got float32\[3\]"),
    ({"top_k": torch.ones(2)}, r"top_k: expected int32\[2\], contiguous, got float32\[2\]"),
    ({"seeds": torch.zeros(2)}, r"seeds: expected int64\[2\], contiguous, got float32\[2\]"),
    ({"positions": torch.zeros(2).long()}, r"positions: expected int64\[4\], contiguous, got int64\[2\]"),
]


@pytest.mark.parametrize(
    ("wrong", "message"), WRONG, ids=lambda one: next(iter(one)) if isinstance(one, dict) else ""
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], message: str) -> None:
    given = {
        "logits": torch.zeros(4, 9), "drafts": torch.zeros(4, dtype=torch.int32), "first_child": LINKS,
        "next_sibling": LINKS, "temperature": torch.ones(2), "top_k": None, "top_p": torch.ones(2),
        "min_p": None, "seeds": torch.zeros(2, dtype=torch.int64),
        "positions": torch.zeros(4, dtype=torch.int64), "depth": 2,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        verify_linked_trees(**given | wrong)
    some = {
        k: v
        for k, v in (given | wrong).items()
        if k in ("logits", "drafts", "first_child", "next_sibling", "depth")
    }
    if wrong.keys() <= some.keys():
        with pytest.raises(ValueError, match=r"expected"):
            verify_greedy_linked_trees(**some)
