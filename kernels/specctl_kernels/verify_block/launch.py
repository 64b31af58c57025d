"""The public call of block verification."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from specctl_kernels.dependent_launch import launched_early
from specctl_kernels.row_law.given import Sampling, check_drafts, check_target
from specctl_kernels.row_law.stats import stats_grid, stats_kernel
from specctl_kernels.sizes import parts_of, power_of_2
from specctl_kernels.verify_block.kernel import block_kernel
from specctl_kernels.verify_block.masses import masses_kernel
from specctl_kernels.verify_block.ratios import cuts_kernel, ratios_kernel
from specctl_kernels.verify_rejection import NO_TOKEN, verify_rejection
from specctl_kernels.verify_rejection.launch import (
    LIST,
    MOST_PASSES,
    NO_PARTS,
    PIECE,
    ROUNDING,
    gathered,
    kept_sizes,
    layout_of,
    partials_of,
    parts_in,
    scratch_of,
)
from specctl_kernels.verify_rejection.search import SEARCHED
from specctl_kernels.workspace import Part, workspace

__all__ = ["NO_TOKEN", "verify_block"]

_NOT_READ = -1.0
_BAD_DRAFT = -2.0


def verify_block(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    starts: torch.Tensor,
    sampling: Sampling,
    positions: torch.Tensor,
    *,
    width: int,
    not_finite: torch.Tensor,
    draft_logits: torch.Tensor | None = None,
    draft_slots: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``verify_rejection``, with the same arguments, but more drafts are kept where they were sampled.

    Block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2): with r_0 = 1 and
    r_i = min(r_{i-1} p(x_i) / q(x_i), 1), the longest block x_1 ... x_i is kept whose uniform is under
    h_i = Z / (Z + 1 - r_i), where Z sums max(r_i p - q, 0) over the token behind it; h_K = r_K. Behind i < K
    kept drafts a token is sampled from max(r_i p - q, 0) / Z, behind K of them from p. What is emitted has
    the target's law, and on average no fewer drafts are kept than by any rule that goes token by token.

    A draft outside the vocabulary ends the block, as the last draft does; so does a row without a
    distribution. Requests that are greedy, or that have no draft logits, are verified token by token: for
    drafts that were not sampled both rules have the same law.

    ``uniforms`` float64[N, 2] in [0, 1): the first of row i - 1 is compared with h_i; the second of the row
    where the request stops gives the token. Without them the second is ``verify_rejection``'s, and the first
    depends on the seed, the position of the request's first row and i: so no step sees one that an earlier
    step has looked at, of which it would be known that it was large.

    Returns what ``verify_rejection`` does. A block that was kept up to a row without a distribution of the
    target or of its draft is counted by ``not_finite``; there follows the row's first largest number, or a
    sample of p.
    Extra memory: 24 bytes for each 4,096 logits and 28 for each row; with cuts 4 bytes for each 512
    bytes of logits, and 14 KiB for each row, for three of a request at least.
    ValueError: another shape or dtype.
    """
    if draft_logits is None or draft_slots is None:
        return verify_rejection(
            logits, drafts, starts, sampling, positions, width=width, draft_logits=draft_logits,
            draft_slots=draft_slots, uniforms=uniforms, slots=slots, not_finite=not_finite,
        )  # fmt: skip
    check_target(logits, drafts, starts, sampling, positions, width, slots, not_finite)
    check_drafts(logits, starts, width, draft_logits, draft_slots, uniforms)
    requests, columns = starts.shape[0] - 1, logits.shape[1]
    tokens = logits.new_empty((requests, width), dtype=torch.int64)
    counts = logits.new_empty(requests, dtype=torch.int32)
    if requests == 0:
        return tokens, counts
    if slots is not None:
        sampling = gathered(sampling, slots)
    piece = min(PIECE, power_of_2(columns, 16))
    target = (logits, logits.stride(0), columns)
    drafted = (draft_logits, *layout_of(draft_logits), draft_slots)
    given = (drafts, starts, *sampling, positions, uniforms)
    is_early = launched_early(logits.device, is_first=slots is None)
    lists, weighed = _weighed(target, drafted, given, width, piece, is_early)
    block_kernel[(requests,)](
        *target, *drafted, *weighed, *given, *lists, tokens, tokens.stride(0), counts, not_finite, width,
        NO_TOKEN=NO_TOKEN, ROUNDING=ROUNDING, BAD_DRAFT=_BAD_DRAFT, PIECE=piece,
        LIST=LIST, MOST_PASSES=MOST_PASSES, **_padded(width, parts_of(columns, piece)), num_warps=16,
    )  # fmt: skip
    return tokens, counts


def _weighed(
    target: tuple[Any, ...],
    drafted: tuple[Any, ...],
    given: tuple[Any, ...],
    width: int,
    piece: int,
    is_early: dict[str, Any],
) -> tuple[tuple[torch.Tensor | None, ...], tuple[Any, ...]]:
    """((rows that are listed: none; lists to search with) or None of both, what the block kernel takes
    between ``drafted`` and ``given``)."""
    logits, _, columns = target
    drafts, starts, temperature, *cuts = given[:6]
    rows, requests, slots = logits.shape[0], starts.shape[0] - 1, drafted[-1]
    pieces = parts_of(columns, piece)
    best, mass, at, *of_drafts = partials_of(logits, pieces, True)
    threshold, kept, top, draft_top, factor, ratio, left = workspace(logits, _of_rows, rows, pieces)
    is_limited = any(cut is not None for cut in cuts)
    part, parts = parts_in(logits, piece) if is_limited else NO_PARTS
    found = _found(logits, requests, parts) if is_limited else (None,) * 6
    padded = _padded(width, pieces)
    stats_kernel[stats_grid(pieces, width, requests, True)](
        *target, *drafted, starts, temperature, cuts[0], best, mass, at, *of_drafts, width, pieces, requests,
        PIECE=piece, parts_ptr=found[0], parts=parts, PART=part, num_warps=4, **is_early,
    )  # fmt: skip
    if is_limited:
        cuts_kernel[(requests * width,)](
            *target, best, mass, pieces, drafts, slots, starts, temperature, *cuts, found[0], parts,
            *found[1:], threshold, kept, width, **padded, **kept_sizes(part, parts), num_warps=8,
        )  # fmt: skip
    ratios_kernel[(requests,)](
        *target, *drafted, best, mass, *of_drafts, pieces, *given, threshold, kept, top, draft_top, ratio,
        factor, width, NOT_READ=_NOT_READ, BAD_DRAFT=_BAD_DRAFT, **padded, num_warps=4,
    )  # fmt: skip
    masses_kernel[(requests * width, pieces)](
        *target, *drafted, best, mass, pieces, starts, temperature, cuts[0], threshold, top, draft_top,
        factor, left, width, PIECE=piece, num_warps=4,
    )  # fmt: skip
    _parts, searched, _short, _short_ids, lists, _taken = found
    weighed = best, mass, at, pieces, threshold, kept, top, draft_top, ratio, factor, left
    return (searched, lists), weighed


def _of_rows(rows: int, pieces: int) -> list[Part]:
    """Threshold, kept mass, largest entry, the draft's, factor; ratio; what is left of each piece."""
    return [*[((rows,), torch.float32)] * 5, ((rows,), torch.float64), ((rows, pieces), torch.float32)]


def _found(logits: torch.Tensor, requests: int, parts: int) -> tuple[torch.Tensor, ...]:
    return workspace(logits, _found_parts, logits.shape[0], requests, parts)


def _found_parts(rows: int, requests: int, parts: int) -> list[Part]:
    """Of all rows the largest entry of each part; of each request the rows that were searched; what the kept
    set of each row is searched with."""
    searched = (requests, SEARCHED.value)
    return [
        ((rows, parts), torch.float32), (searched, torch.int32), *scratch_of(max(rows, prod(searched)))
    ]  # fmt: skip


def _padded(width: int, pieces: int) -> dict[str, int]:
    return {
        "ROWS": power_of_2(width, 2),
        "PADDED": power_of_2(pieces, 2),
    }
