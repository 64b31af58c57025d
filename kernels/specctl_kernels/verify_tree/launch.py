"""The public calls of the verification of trees."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from specctl_kernels.dependent_launch import launched_early
from specctl_kernels.row_argmax import row_partials
from specctl_kernels.sizes import parts_of, power_of_2
from specctl_kernels.verify_rejection.checks import check_drafts, check_target, expect
from specctl_kernels.verify_rejection.launch import (
    NO_PARTS,
    NO_TOKEN,
    NOT_FINITE,
    PIECE,
    ROUNDING,
    gathered,
    kept_sizes,
    layout_of,
    partials_of,
    parts_in,
    scratch_of,
)
from specctl_kernels.verify_rejection.stats import stats_grid, stats_kernel
from specctl_kernels.verify_tree.kernel import greedy_tree_kernel, tree_kernel
from specctl_kernels.workspace import Part, workspace

__all__ = [
    "NOT_FINITE", "NO_TOKEN", "RULES", "Trees", "check_width", "launch_greedy_walk", "launch_walk",
    "verify_greedy_tree", "verify_tree",
]  # fmt: skip

RULES = ("multi_candidate", "traversal")
_MOST_ROWS = 256
"""Rows of a request: the walk compares each two of them in registers."""


def verify_tree(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    parents: torch.Tensor,
    starts: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    width: int,
    rule: str = "multi_candidate",
    draft_logits: torch.Tensor | None = None,
    draft_slots: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What each of R requests emits of a tree of drafts, distributed as if the target had sampled it.

    A request's row 0 is the root: it was fed the last token already accepted. Each other row is a node and
    was fed its draft. Children are tried in the order of their rows, where p is the target's law behind the
    row and q the law that the children were sampled from, without replacement:

    multi_candidate  SpecInfer, arXiv 2305.09781, algorithm 2: from the root, a child x is accepted with
                     probability min(1, p(x) / q(x)); if it is not, p becomes max(p - q, 0), normalised, q
                     loses x, and the next child is tried; behind the last, a token is sampled from p.
    traversal        arXiv 2505.12398, algorithm 2: from the leaves, a node is accepted with a chance of its
                     whole path; never fewer accepted tokens in the mean. Each rejection and, with cuts, each
                     row looked at costs one program a read of a row.

    Where drafts were not sampled (suffix tree, n-gram, most likely tokens), q is all on the child: one is
    accepted with its probability under what is left of p. No lossless rule accepts more, and both give the
    same law, so ``traversal`` then walks as ``multi_candidate``. Options and ties are those of
    ``verify_rejection``; a chain under ``multi_candidate`` emits what ``verify_rejection`` does.

    logits       [N, V], rows contiguous, bfloat16, float16 or float32; -inf is probability 0
    drafts       integer[N]: the token that each row was fed; of a request's first row not read
    parents      int32[N]: of each row, the row of its parent, counted within the request; of the first not
                 read. A node is never accepted, nor anything below it, whose parent is not an earlier row,
                 whose token is outside the vocabulary, or whose token an earlier child of its parent has
                 (drafts sampled with replacement are so made drafts without)
    starts       int32[R + 1], the first row of each request, ending with N; a request has ``width`` rows at
                 most
    temperature  float32[R]; at 0 a request is verified as by ``verify_greedy_tree``
    top_k        int32[R] or None, top_p, min_p float32[R] or None, as in ``verify_rejection``
    seeds        int64[R], positions int64[N]: of each row, its place in the sequence; siblings have the same.
                 A request's random numbers depend on its seed and the positions of its rows alone, under
                 ``traversal`` on the root's position and the number of the row.
    draft_logits [slots, K, V'], K >= width - 1, V' <= V, as in ``verify_rejection``: [s, i] is what the
                 children of row i of the request with slot s were sampled from; not used of rows without
    draft_slots  int32[R], negative for a request whose drafts were not sampled; with ``draft_logits`` only
    uniforms     float64[N, 2] in [0, 1) instead of the random numbers. The first: under
                 ``multi_candidate``, of the row whose children are tried; what it has left after one is
                 rejected is stretched to [0, 1) for the next. Under ``traversal``, of the node itself. The
                 second samples in the row where the request stops.
    slots        integer[R]: the options are then by slot, as in ``verify_rejection``
    Returns tokens int64[R, width], counts int32[R], paths int32[R, width]. Entry i of a path is the row of
    the request whose logits gave token i: 0 first, then the accepted nodes; the KV of these rows stays.
    Tokens and paths are -1 (``NO_TOKEN``) behind the count, which is 0 for a request without rows and
    ``NOT_FINITE`` where a sampled request came to a row with a NaN, a +inf or nothing finite.
    For a tree by its links, as SGLang has it: ``verify_linked_trees``.
    Extra memory: 12 bytes for each 4,096 logits (20 with draft logits); with cuts 4 for each 512 bytes of
    logits, and 14 KiB a request, to look for the entries of one row that are kept.
    ValueError: another shape or dtype, another rule, a width over 256.
    """
    options = (temperature, top_k, top_p, min_p, seeds)
    check_target(logits, drafts, starts, *options, positions, max(width, 1), slots, None)
    _check(logits, parents, width)
    check_drafts(logits, starts, width, draft_logits, draft_slots, uniforms)
    if rule not in RULES:
        raise ValueError(f"rule: expected {' or '.join(RULES)}, got {rule}")
    requests = starts.shape[0] - 1
    results = _results(logits, requests, width)
    if requests == 0:
        return results
    if slots is not None:
        options = gathered(options, slots)
    launch_walk(
        logits, (draft_logits, *layout_of(draft_logits), draft_slots),
        Trees(drafts, parents, None, None, starts, width, requests, power_of_2(width, 2)),
        options, positions, uniforms, (results[0], results[2], results[1]),
        is_traversal=rule == "traversal", is_first=slots is None,
    )  # fmt: skip
    return results


class Trees(NamedTuple):
    """The drafts of a batch as the kernels take them."""

    drafts: torch.Tensor
    parents: torch.Tensor | None
    first_child: torch.Tensor | None
    next_sibling: torch.Tensor | None
    starts: torch.Tensor | None
    width: int
    requests: int
    rows: int
    """That the kernel is compiled for."""


def _found(logits: torch.Tensor, requests: int, parts: int) -> tuple[torch.Tensor, ...]:
    return workspace(logits, _found_parts, requests, logits.shape[0], parts)


def _found_parts(requests: int, rows: int, parts: int) -> list[Part]:
    """Of all rows the largest entry of each part; of each request, what the kept set of one row is searched
    with."""
    return [((rows, parts), torch.float32), *scratch_of(requests)]


def launch_walk(
    logits: torch.Tensor,
    drafted: tuple[Any, ...],
    trees: Trees,
    options: tuple[Any, ...],
    positions: torch.Tensor,
    uniforms: torch.Tensor | None,
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    depth: int = 0,
    is_traversal: bool = False,
    is_first: bool = True,
) -> None:
    """One read of the logits, and the walk of each request; everything is checked. results: tokens, paths,
    counts; with links emitted, index, counts."""
    columns = logits.shape[1]
    temperature, *cuts, seeds = options
    is_limited = any(cut is not None for cut in cuts)
    piece = min(PIECE, power_of_2(columns, 16))
    pieces = parts_of(columns, piece)
    has_drafts = drafted[0] is not None
    partials = partials_of(logits, pieces, has_drafts)
    part, parts = parts_in(logits, piece) if is_limited else NO_PARTS
    of_parts, *scratch = _found(logits, trees.requests, parts) if is_limited else (None,) * 5
    stats_kernel[stats_grid(pieces, trees.width, trees.requests, has_drafts)](
        logits, logits.stride(0), columns, *drafted, trees.starts, temperature,
        None if trees.first_child is None else cuts[0], *partials, trees.width, pieces, trees.requests,
        PIECE=piece, parts_ptr=of_parts, parts=parts, PART=part, num_warps=4,
        **launched_early(logits.device, is_first=is_first),
    )  # fmt: skip
    tree_kernel[(trees.requests,)](
        logits, logits.stride(0), columns, *drafted, *partials, pieces,
        *trees[:5], temperature, *cuts, seeds, positions, uniforms, of_parts, parts, *scratch,
        *results, trees.width, depth, IS_TRAVERSAL=is_traversal, NO_TOKEN=NO_TOKEN, NOT_FINITE=NOT_FINITE,
        ROUNDING=ROUNDING, ROWS=trees.rows, PADDED=power_of_2(pieces, 2), PIECE=piece,
        **kept_sizes(part, parts),
        num_warps=8 if is_limited else 16 if has_drafts else 4,
    )  # fmt: skip


def verify_greedy_tree(
    logits: torch.Tensor, drafts: torch.Tensor, parents: torch.Tensor, starts: torch.Tensor, *, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What each of R requests emits of a tree of drafts, greedily, from one read of the logits.

    From the root, the first child that is its parent's first largest logit is accepted; where none is, that
    largest is emitted: greedy decoding, token for token (SpecInfer, arXiv 2305.09781, algorithm 2).

    logits   [N, V], rows contiguous, any float type; a NaN is never the largest
    drafts   integer[N], parents int32[N], starts int32[R + 1], width, and what is returned: as in
             ``verify_tree``; no request is ``NOT_FINITE``
    ValueError: another shape or dtype, a width over 256.
    """
    _check(logits, parents, width)
    if starts.ndim != 1 or starts.shape[0] == 0:
        raise ValueError(f"starts: expected [requests + 1], got {list(starts.shape)}")
    expect("starts", starts, starts.shape, (torch.int32,))
    expect("drafts", drafts, logits.shape[:1], (torch.int32, torch.int64))
    requests = starts.shape[0] - 1
    results = _results(logits, requests, width)
    trees = Trees(drafts, parents, None, None, starts, width, requests, power_of_2(width, 2))
    launch_greedy_walk(logits, trees, (results[0], results[2], results[1]))
    return results


def launch_greedy_walk(
    logits: torch.Tensor,
    trees: Trees,
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    depth: int = 0,
) -> None:
    """As ``launch_walk``; the logits are checked here."""
    partials = row_partials(logits)
    if trees.requests:
        greedy_tree_kernel[(trees.requests,)](
            partials.best, partials.at, partials.pieces, logits.shape[1], *trees[:5], *results, trees.width,
            depth, NO_TOKEN=NO_TOKEN, ROWS=trees.rows, PADDED=partials.padded, num_warps=1,
        )  # fmt: skip


def _check(logits: torch.Tensor, parents: torch.Tensor, width: int) -> None:
    check_width(width)
    expect("parents", parents, logits.shape[:1], (torch.int32,))


def check_width(width: int) -> None:
    if not 1 <= width <= _MOST_ROWS:
        raise ValueError(f"width: expected 1 to {_MOST_ROWS}, got {width}")


def _results(
    logits: torch.Tensor, requests: int, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(tokens, counts, paths)."""
    return (
        logits.new_empty((requests, width), dtype=torch.int64),
        logits.new_empty(requests, dtype=torch.int32),
        logits.new_empty((requests, width), dtype=torch.int32),
    )
