"""Trees whose rows are cut: where the parts of a row tell its kept set, where it is read, and both along one
walk. ``test_twins`` runs this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from specctl_kernels.verify_rejection import launch as rejection_launch
from specctl_kernels.verify_rejection.reference import distribution
from specctl_kernels.verify_tree import launch, verify_tree
from specctl_kernels.verify_tree.reference import verify_tree_reference
from support.cut_rows import CUT_BY, LISTED
from support.quick_interpreter import quick_interpreter
from support.tree_batches import tree_batch
from support.verify_tests import poison_new_memory

# numpy's, under the interpreter, of draft rows without children, which hold nothing
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
ROWS, REQUESTS, DEGREE = 5, 3, 0.7
SHORT = 512
"""Entries that the short list has room for."""
WALKED = [("multi_candidate", False), ("multi_candidate", True), ("traversal", True)]
"""Rule, and whether drafts were sampled, of two requests of three."""


@pytest.fixture(autouse=True, scope="module")
def interpreted_in_time() -> Iterator[None]:
    with quick_interpreter():
        yield


poisoned = pytest.fixture(autouse=True)(poison_new_memory)


def of_rows(rows: list[torch.Tensor], cuts: tuple[int, float, float], is_sampled: bool) -> dict[str, Any]:
    """Requests of one binary tree, with these rows, float32[1, V], and random numbers."""
    logits = torch.cat(rows * REQUESTS)
    columns = logits.shape[1]
    drafted = {"draft_dtype": torch.float32, "draft_columns": columns} if is_sampled else {}
    given = tree_batch(
        REQUESTS, columns, torch.float32, "none", width=ROWS, full=True, shape="binary", logits=logits,
        **drafted,
    )  # fmt: skip
    kinds = zip(cuts, (torch.int32, torch.float32, torch.float32), strict=True)
    options = [torch.full((REQUESTS,), cut, dtype=kind) for cut, kind in kinds]
    given |= dict(zip(("top_k", "top_p", "min_p"), options, strict=True))
    given["temperature"] = torch.full((REQUESTS,), DEGREE)
    return given | {"uniforms": torch.rand(len(logits), 2, dtype=torch.float64)}


def read_where_equal(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> list[bool]:
    """Of each request of a call, whose results are the reference's, whether one of its rows was read, until
    its values fitted a list, to find its cut; under the interpreter alone is that memory new."""
    made: list[tuple[torch.Tensor, ...]] = []
    find = launch._found

    def noted(*sizes: Any) -> tuple[torch.Tensor, ...]:
        made.append(find(*sizes))
        return made[-1]

    monkeypatch.setattr(launch, "_found", noted)
    moved = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    found = verify_tree(**moved)
    for got, want in zip(found, verify_tree_reference(**given), strict=True):
        assert got.tolist() == want.tolist()
    assert int(found[1].min()) >= 1
    _parts, _short, _short_ids, lists, _taken = made[0]
    return (~lists.cpu().isnan()).any(1).tolist()


@pytest.mark.parametrize("cuts", CUT_BY, ids=str)
@pytest.mark.parametrize("row", LISTED)
def test_rows_that_keep_few_are_not_read(
    monkeypatch: pytest.MonkeyPatch, row: str, cuts: tuple[int, float, float]
) -> None:
    rule, is_sampled = WALKED[(list(LISTED).index(row) + CUT_BY.index(cuts)) % len(WALKED)]
    top_k, top_p, min_p = cuts
    rows = [LISTED[row].roll(131 * number, 1) for number in range(ROWS)]
    is_read = read_where_equal(monkeypatch, of_rows(rows, cuts, is_sampled) | {"rule": rule})
    needed = distribution(rows[0][0], DEGREE, top_k, 1.0 if top_k or min_p else top_p, min_p) > 0
    if not IS_GPU and int(needed.sum()) <= SHORT:
        assert is_read == [False] * REQUESTS


def broad_row() -> torch.Tensor:
    """More entries than the short list has room for weigh nearly the same."""
    return torch.arange(9001).mul(2.0**-11).roll(4000)[None]


@pytest.mark.parametrize(("rule", "is_sampled"), WALKED, ids=str)
@pytest.mark.parametrize("is_first_broad", [True, False])
@pytest.mark.parametrize("cuts", [(0, 0.9, 0.0), (0, 0.9, 1e-3), (600, 0.9, 0.0)], ids=str)
def test_a_walk_over_rows_that_are_read_and_rows_that_are_not(
    monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, float, float], is_first_broad: bool, rule: str,
    is_sampled: bool,
) -> None:  # fmt: skip
    """One request stops at the root, the others go on to its child; under ``traversal`` some come back, to a
    row whose list is no longer there."""
    few, broad = LISTED["few"], broad_row()
    rows = [broad, few, few, broad, broad] if is_first_broad else [few, broad, broad, few, few]
    given = of_rows(rows, cuts, is_sampled) | {"rule": rule}
    if not is_sampled:
        # Kept, but not surely.
        order = rows[0][0].argsort(descending=True)
        given["drafts"].view(REQUESTS, ROWS)[:, 1:3] = order[[2, 3]]
        given["uniforms"].view(REQUESTS, ROWS, 2)[:, 0, 0] = torch.tensor([0.999, *[0.0] * (REQUESTS - 1)])
    is_read = read_where_equal(monkeypatch, given)
    if not IS_GPU and not is_sampled:
        # A request that stops at the root comes to no other row.
        assert is_read == [is_first_broad or cuts[0] > SHORT, *[True] * (REQUESTS - 1)]


@pytest.mark.parametrize("cuts", CUT_BY[:3], ids=str)
def test_more_parts_than_the_short_list_has_places(
    monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, float, float]
) -> None:
    """As of a large vocabulary, by parts of 8 columns."""
    monkeypatch.setattr(rejection_launch, "_PART_BYTES", 32)
    monkeypatch.setattr(launch, "PIECE", 64)
    rows = [LISTED[row] for row in ("few", "in few parts", "one")]
    read_where_equal(monkeypatch, of_rows([*rows, *rows[:2]], cuts, is_sampled=False))
