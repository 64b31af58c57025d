"""The public calls of the verification of trees that are given by their links, as SGLang's engine gives them.

What is returned has the places that the engine reads, so that nothing has to be put in another order.
"""

from __future__ import annotations

import torch

from specctl_kernels.sizes import power_of_2
from specctl_kernels.verify_rejection.checks import check_logits, expect
from specctl_kernels.verify_tree.launch import Trees, check_width, launch_greedy_walk, launch_walk
from specctl_kernels.workspace import Part, workspace

__all__ = ["compiled_rows", "verify_greedy_linked_trees", "verify_linked_trees"]

_ROWS_LEAST = 16
"""One kernel for all trees of up to so many rows: a warp has room for them."""
_INTEGERS = (torch.int32, torch.int64)
_NOT_DRAFTED = (None, 0, 0, 0, None)


def verify_linked_trees(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    depth: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``verify_tree`` of R requests of the same number of rows, whose drafts were not sampled.

    logits        [R * rows, V], as in ``verify_tree``; so are drafts, top_p, min_p, seeds and positions
    first_child   integer[R, rows]: of each row its first child's, -1 for none (retrieve_next_token)
    next_sibling  integer[R, rows]: of each row its parent's next child's, -1 for none. Links lead to later
                  rows; a row that no earlier row leads to is never accepted
    temperature   float32[R], over 0
    top_k         as in ``verify_tree``, but a request with 1 is greedy: of equals it takes the first
    depth         entries of ``index`` for a request; what a path has behind them is not told
    Returns emitted int32[R * rows], counts int32[R], index int32[R, depth]. ``emitted`` has the token that
    follows a row on the accepted path, 0 for other rows; ``index`` the path's rows, counted within the batch
    (the root, then the accepted drafts), -1 behind the count, which is 1 to ``depth``. A sampled request that
    came to a row with a NaN, a +inf or nothing finite emits token 0 behind its root.
    Extra memory: that of ``verify_tree``, and 4 bytes for each row.
    ValueError: another shape or dtype, over 256 rows.
    """
    check_logits(logits)
    requests = _check_trees(logits, drafts, first_child, next_sibling, depth)
    each = (requests,)
    expect("temperature", temperature, each, (torch.float32,))
    expect("top_k", top_k, each, (torch.int32,))
    expect("top_p", top_p, each, (torch.float32,))
    expect("min_p", min_p, each, (torch.float32,))
    expect("seeds", seeds, each, (torch.int64,))
    expect("positions", positions, (logits.shape[0],), (torch.int64,))
    results = _results(logits, requests, depth)
    if requests:
        (parents,) = workspace(logits, _parents, logits.shape[0])
        launch_walk(
            logits, _NOT_DRAFTED, _trees(drafts, parents, first_child, next_sibling),
            (temperature, top_k, top_p, min_p, seeds), positions, None, results, depth=depth,
        )  # fmt: skip
    return results[0], results[2], results[1]


def verify_greedy_linked_trees(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    *,
    depth: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``verify_greedy_tree`` of R requests of the same number of rows, with the arguments and results of
    ``verify_linked_trees``; a NaN is never the largest."""
    requests = _check_trees(logits, drafts, first_child, next_sibling, depth)
    results = _results(logits, requests, depth)
    launch_greedy_walk(logits, _trees(drafts, None, first_child, next_sibling), results, depth=depth)
    return results[0], results[2], results[1]


def _parents(rows: int) -> list[Part]:
    return [((rows,), torch.int32)]


def compiled_rows(rows: int) -> int:
    """The rows of the kernel that verifies trees of so many."""
    return power_of_2(rows, _ROWS_LEAST)


def _trees(
    drafts: torch.Tensor,
    parents: torch.Tensor | None,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
) -> Trees:
    requests, rows = first_child.shape
    return Trees(drafts, parents, first_child, next_sibling, None, rows, requests, compiled_rows(rows))


def _check_trees(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    depth: int,
) -> int:
    """The number of requests; ValueError with expected and got."""
    if first_child.ndim != 2:
        raise ValueError(f"first_child: expected [requests, rows], got {list(first_child.shape)}")
    shape = first_child.shape
    check_width(shape[1])
    expect("first_child", first_child, shape, _INTEGERS)
    expect("next_sibling", next_sibling, shape, _INTEGERS)
    if logits.shape[:1] != (shape[0] * shape[1],):
        raise ValueError(f"logits: expected {shape[0]} x {shape[1]} rows, got {list(logits.shape)}")
    expect("drafts", drafts, logits.shape[:1], _INTEGERS)
    if depth < 1:
        raise ValueError(f"depth: expected 1 at least, got {depth}")
    return shape[0]


def _results(
    logits: torch.Tensor, requests: int, depth: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(emitted, index, counts)."""
    return (
        logits.new_empty(logits.shape[0], dtype=torch.int32),
        logits.new_empty((requests, depth), dtype=torch.int32),
        logits.new_empty(requests, dtype=torch.int32),
    )
