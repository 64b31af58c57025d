"""The public calls of the verification of trees that are given by their links, as SGLang's engine gives them.

What is returned has the places that the engine reads, so that nothing has to be put in another order.
"""

from __future__ import annotations

import torch

from specctl_kernels.dependent_launch import launched_early
from specctl_kernels.row_argmax import row_partials
from specctl_kernels.row_law.given import Sampling, check_logits, expect
from specctl_kernels.row_law.stats import stats_grid, stats_kernel
from specctl_kernels.sizes import parts_of, power_of_2
from specctl_kernels.verify_rejection.launch import (
    NO_PARTS,
    PIECE,
    kept_sizes,
    partials_of,
    parts_in,
    scratch_of,
)
from specctl_kernels.verify_tree.kernel import greedy_tree_kernel, tree_kernel
from specctl_kernels.workspace import Part, workspace

__all__ = ["compiled_rows", "verify_greedy_linked_trees", "verify_linked_trees"]

_ROWS_LEAST = 16
"""One kernel for all trees of up to so many rows: a warp has room for them."""
_ROWS_MOST = 256
"""The walk compares each two rows of a request in registers."""
_INTEGERS = (torch.int32, torch.int64)
_NOT_DRAFTED = (None, 0, 0, 0, None)


def verify_linked_trees(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    sampling: Sampling,
    positions: torch.Tensor,
    *,
    depth: int,
    uniforms: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What each of R requests emits of a tree of drafts, distributed as if the target had sampled it.

    A request's row 0 is the root: it was fed the last token already accepted. Each other row is a node and
    was fed its draft. From the root, children are tried in order: x is accepted with probability p(x) of the
    target's law p behind the row; if it is not, p loses x, is normalised, and the next child is tried; behind
    the last, a token is sampled from what is left of p (SpecInfer, arXiv 2305.09781, algorithm 2, of drafts
    that were not sampled: n-grams, suffix trees, the most likely tokens of a head). No lossless rule accepts
    more of them.

    logits        [R * rows, V], rows contiguous, bfloat16, float16 or float32; -inf is probability 0
    drafts        integer[R * rows]: the token that each row was fed; of a request's first row not read. A
                  node is never accepted, nor anything below it, whose token is outside the vocabulary, or is
                  that of an earlier child of its parent
    first_child   integer[R, rows]: of each row its first child's, -1 for none (retrieve_next_token)
    next_sibling  integer[R, rows]: of each row its parent's next child's, -1 for none. Links lead to later
                  rows; a row that no earlier row leads to is never accepted
    sampling      of each request
    positions     int64[R * rows], of each row, its place in the sequence; siblings have the same
    depth         entries of ``index`` for a request; what a path has behind them is left out
    uniforms      float64[R * rows, 2] in [0, 1) instead of the random numbers: the first for a row's
                  children; what it has left after one is rejected is stretched to [0, 1) for the next; the
                  second samples in the row where the request stops
    Returns emitted int32[R * rows], counts int32[R], index int32[R, depth]. ``emitted`` has the token that
    follows a row on the accepted path, 0 for other rows; ``index`` the path's rows, counted within the batch
    (the root, then the accepted drafts), -1 behind the count, which is 1 to ``depth``. A sampled request that
    came to a row with a NaN, a +inf or nothing finite emits token 0 behind its root.
    Extra memory: 12 bytes for each 4,096 logits and 4 for each row; with cuts 4 for each 512 bytes of logits,
    and 14 KiB a request, to look for the entries of one row that are kept.
    ValueError: another shape or dtype, over 256 rows.
    """
    check_logits(logits)
    requests = _check_trees(logits, drafts, first_child, next_sibling, depth)
    sampling.check(requests)
    expect("positions", positions, (logits.shape[0],), (torch.int64,))
    expect("uniforms", uniforms, (logits.shape[0], 2), (torch.float64,))
    emitted, index, counts = results = _results(logits, requests, depth)
    if requests == 0:
        return emitted, counts, index
    rows, columns = first_child.shape[1], logits.shape[1]
    is_limited = sampling.has_cuts
    piece = min(PIECE, power_of_2(columns, 16))
    pieces = parts_of(columns, piece)
    best, mass, at, *_ = partials_of(logits, pieces, False)
    part, parts = parts_in(logits, piece) if is_limited else NO_PARTS
    of_parts, *scratch = _scratch(logits, requests, parts) if is_limited else (None,) * 5
    (parents,) = workspace(logits, _parents, logits.shape[0])
    stats_kernel[stats_grid(pieces, rows, requests, False)](
        logits, logits.stride(0), columns, *_NOT_DRAFTED, None, *sampling[:2], best, mass, at, None,
        None, rows, pieces, requests, PIECE=piece, parts_ptr=of_parts, parts=parts, PART=part, num_warps=4,
        **launched_early(logits.device, is_first=True),
    )  # fmt: skip
    tree_kernel[(requests,)](
        logits, logits.stride(0), columns, best, mass, at, pieces, drafts, parents, first_child, next_sibling,
        *sampling, positions, uniforms, of_parts, parts, *scratch, *results,
        rows, depth, ROWS=compiled_rows(rows), PADDED=power_of_2(pieces, 2), PIECE=piece,
        **kept_sizes(part, parts), num_warps=8 if is_limited else 4,
    )  # fmt: skip
    return emitted, counts, index


def verify_greedy_linked_trees(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    *,
    depth: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What each of R requests emits of a tree of drafts, greedily, from one read of the logits.

    From the root, the first child that is its parent's first largest logit is accepted; where none is, that
    largest is emitted: greedy decoding, token for token. Arguments and results are those of
    ``verify_linked_trees``; a NaN is never the largest.
    """
    requests = _check_trees(logits, drafts, first_child, next_sibling, depth)
    emitted, index, counts = results = _results(logits, requests, depth)
    partials = row_partials(logits)
    if requests:
        rows = first_child.shape[1]
        greedy_tree_kernel[(requests,)](
            partials.best, partials.at, partials.pieces, logits.shape[1], drafts, first_child, next_sibling,
            *results, rows, depth, ROWS=compiled_rows(rows), PADDED=partials.padded, num_warps=1,
        )  # fmt: skip
    return emitted, counts, index


def compiled_rows(rows: int) -> int:
    """The rows of the kernel that verifies trees of so many."""
    return power_of_2(rows, _ROWS_LEAST)


def _parents(rows: int) -> list[Part]:
    return [((rows,), torch.int32)]


def _scratch(logits: torch.Tensor, requests: int, parts: int) -> tuple[torch.Tensor, ...]:
    return workspace(logits, _scratch_layout, requests, logits.shape[0], parts)


def _scratch_layout(requests: int, rows: int, parts: int) -> list[Part]:
    """Of all rows the largest entry of each part; of each request, what the kept set of one row is searched
    with."""
    return [((rows, parts), torch.float32), *scratch_of(requests)]


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
    if not 1 <= shape[1] <= _ROWS_MOST:
        raise ValueError(f"first_child: expected 1 to {_ROWS_MOST} rows, got {shape[1]}")
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
