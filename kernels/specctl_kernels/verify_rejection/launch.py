"""The public call of verification by rejection sampling."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from specctl_kernels.dependent_launch import followed_early, launched_early
from specctl_kernels.row_law.given import Sampling, check_drafts, check_target
from specctl_kernels.row_law.stats import gather_kernel, stats_grid, stats_kernel
from specctl_kernels.sizes import parts_of, power_of_2
from specctl_kernels.verify_rejection.kernel import verify_kernel
from specctl_kernels.verify_rejection.one_hot import one_hot_kernel
from specctl_kernels.verify_rejection.search import SEARCHED, search_kernel
from specctl_kernels.workspace import Part, workspace

__all__ = [
    "LIST", "MOST_PASSES", "NO_PARTS", "NO_TOKEN", "PIECE", "ROUNDING", "gathered",
    "kept_sizes", "layout_of", "partials_of", "parts_in", "scratch_of", "verify_rejection",
]  # fmt: skip

NO_TOKEN = -1
ROUNDING = 2.0**-20
"""A mass of p - q up to this is rounding: its row is sampled from p. An exact p - q of so little mass comes
up as rarely, so the law is kept to this."""
PIECE = 4096
"""Columns of a piece. By vocabulary alone: sums in another order for another batch could move a token."""
LIST = 2048
"""Entries of a row that may be kept while its threshold is looked for by reading it."""
_SHORT = 512
"""Entries of a row that are each held against all; where more matter, it is read until its threshold is
found."""
_PART_BYTES = 512
"""Of a row, those whose largest entry is kept where there are cuts: what a warp loads at once."""
NO_PARTS = (1, 0)
"""As ``parts_in``, of a call without cuts."""
_READ_REGISTERS = 56
"""Of the kernel that reads: left to itself the compiler takes 48, which reads 2 % slower on an H200."""
_SEARCH_REGISTERS = 128
"""So that two programs that search share a multiprocessor: there are often more of them than those."""
_GATHERED = 128
MOST_PASSES = 256
"""A bound that no search should reach: an interval of float32 is cut to a fifth by each pass."""


def verify_rejection(
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
    """The tokens that each of R requests emits, and how many, distributed as if the target had sampled them.

    Speculative sampling, token by token (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv
    2302.01318): a draft x is kept with probability min(1, p(x) / q(x)); the first that is not is replaced by
    a sample of max(p - q, 0), normalised; after the last draft one more token is sampled from p. p is the
    softmax of logits / temperature, cut by min-p, then top-k, then top-p, and normalised. q is the softmax of
    the request's draft logits / temperature, or all on the draft where it has none.

    A call without ``draft_logits`` draws samples of a row's whole law, the draft with its probability there,
    until the cuts keep one, which has the kept law; a draft is kept while it is its row's sample. What lies
    above a sample decides, so that no kept set is looked for (sampling by rejection: FlashInfer, Ye et al.
    2025, arXiv 2501.01005). Where top-p follows another cut, after one sample with min-p, and after eight
    that are cut, the kept set is looked for and sampled from.

    logits       [N, V], rows contiguous, bfloat16, float16 or float32; -inf is probability 0
    drafts       integer[N]: the token that each row was fed; a request's first row holds no draft; a draft
                 outside the vocabulary is never kept, and its row is sampled from p
    starts       int32[R + 1], the first row of each request, ending with N; a request has ``width`` rows at
                 most
    sampling     of each request; a greedy one is verified as by ``verify_greedy``
    positions    int64[N], of each row
    draft_logits [slots, K, V'], K >= width - 1, V' <= V (q is 0 behind V'), columns contiguous, before the
                 temperature: [s, i] is what draft i of the request with slot s was sampled from
    draft_slots  int32[R], negative for a request whose drafts were not sampled; with ``draft_logits`` only
    uniforms     float64[N, 2] in [0, 1) instead of a row's first random numbers: its draft is kept if the
                 first is under p / q; the second gives the first token, by id, up to which more of the mass
                 lies
    slots        integer[R]: ``sampling`` is then by slot, and request r's is at slots[r]
    not_finite   int64[1]: counts requests that came to a row with a NaN, a +inf or nothing finite. They go on
                 as in vLLM: the draft there is rejected, and the row's first largest number follows (column 0
                 if there is none); where only the draft's distribution is so, a sample of p
    Returns int64[R, width], ``NO_TOKEN`` behind the emitted ones, and int32[R], 0 for a request without rows.
    Extra memory: 12 bytes for each 4,096 logits (20 with draft logits); with cuts 4 for each 512 bytes of
    logits, and 14 to 22 KiB a request for what is kept of a row. With draft logits and cuts 43 KiB a
    request: for three of its rows 512 entries that may be kept, and what they are found with.
    ValueError: another shape or dtype.
    """
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
    pieces = parts_of(columns, piece)
    partials = partials_of(logits, pieces, draft_logits is not None)
    layout = {"ROWS": power_of_2(width, 2), "PADDED": power_of_2(pieces, 2)}
    drafted = (draft_logits, *layout_of(draft_logits), draft_slots)
    is_limited = sampling.has_cuts
    part, parts = parts_in(logits, piece) if is_limited else NO_PARTS
    found: Any = _NOTHING_FOUND if draft_logits is not None else _NO_SCRATCH
    if is_limited:
        found = (_found if draft_logits is not None else _scratch)(logits, requests, parts)
    stats_kernel[stats_grid(pieces, width, requests, draft_logits is not None)](
        logits, logits.stride(0), columns, *drafted, starts, *sampling[:2], *partials, width, pieces,
        requests, PIECE=piece, parts_ptr=found.parts, parts=parts, PART=part, num_warps=4,
        **_registers(logits.device, _READ_REGISTERS),
        **launched_early(logits.device, is_first=slots is None),
    )  # fmt: skip
    given = (drafts, starts, *sampling, positions, uniforms)
    emitted = (tokens, tokens.stride(0), counts, not_finite, width)
    sizes = layout | kept_sizes(part, parts)
    marks = {"NO_TOKEN": NO_TOKEN, "PIECE": piece}
    early = launched_early(logits.device)
    if draft_logits is None:
        one_hot_kernel[(requests,)](
            logits, logits.stride(0), columns, *partials[:3], pieces, *given, found.parts, parts, *found[1:],
            *emitted, **sizes, **marks, num_warps=8, **early,
        )  # fmt: skip
        return tokens, counts
    rows = (logits, logits.stride(0), columns, *drafted, *partials, pieces, *given)
    if is_limited:
        search_kernel[(requests * SEARCHED.value,)](
            *rows, found.parts, parts, *found[:7], width, **sizes,
            num_warps=8, **_registers(logits.device, _SEARCH_REGISTERS), **early,
        )  # fmt: skip
    verify_kernel[(requests,)](
        *rows, *found[:6], *emitted, ROUNDING=ROUNDING, **layout, **marks, SHORT=_SHORT, LIST=LIST,
        MOST_PASSES=MOST_PASSES, num_warps=16, **early,
    )  # fmt: skip
    return tokens, counts


def _registers(device: torch.device, most: int) -> dict[str, int]:
    return {"maxnreg": most} if device.type == "cuda" and not torch.version.hip else {}


def gathered(sampling: Sampling, slots: torch.Tensor) -> Sampling:
    """Of the requests, in their order."""
    requests = slots.shape[0]
    pairs = zip(sampling, workspace(slots, _options, requests), strict=True)
    made = [None if one is None else goal for one, goal in pairs]
    gather_kernel[(parts_of(requests, _GATHERED),)](
        slots, *sampling, *made, requests, BLOCK=_GATHERED, num_warps=4, **followed_early(slots.device)
    )
    return Sampling(*made)


def _options(requests: int) -> list[Part]:
    """Of ``Sampling``."""
    kinds = (torch.float32, torch.int32, torch.float32, torch.float32, torch.int64)
    return [((requests,), kind) for kind in kinds]


class _Found(NamedTuple):
    """What is found of the rows whose cuts are searched."""

    searched: Any
    """Some rows of each request; of each of them:"""
    listed: Any
    """How many entries the short list has, -1 without one."""
    kept: Any
    """Threshold and kept mass."""
    short: Any
    short_ids: Any
    """Entries that may be kept, and their columns."""
    lists: Any
    """Where its entries are put while it is read."""
    taken: Any
    """The parts of it that are read, then what was found there, sorted."""
    parts: Any
    """Of all rows: the largest entry of each part."""


_NOTHING_FOUND = _Found(*(None,) * 8)


class _Scratch(NamedTuple):
    """What a request without a distribution of its drafts is verified with."""

    parts: Any
    """Of all rows: the largest entry of each part."""
    over: Any
    """The parts of a row that reach over an entry."""
    taken: Any
    short: Any
    short_ids: Any
    lists: Any
    """As ``_Found``'s, of the row at which a request is."""


_NO_SCRATCH = _Scratch(*(None,) * 6)


def _scratch(logits: torch.Tensor, requests: int, parts: int) -> _Scratch:
    return _Scratch(*workspace(logits, _scratch_parts, requests, logits.shape[0], parts))


def _scratch_parts(requests: int, rows: int, parts: int) -> list[Part]:
    short, short_ids, lists, taken = scratch_of(requests)
    over = ((requests, power_of_2(parts, 2)), torch.int32)
    return [((rows, parts), torch.float32), over, taken, short, short_ids, lists]


def _found(logits: torch.Tensor, requests: int, parts: int) -> _Found:
    return _Found(*workspace(logits, _found_parts, requests, logits.shape[0], parts))


def _found_parts(requests: int, rows: int, parts: int) -> list[Part]:
    searched = (requests, SEARCHED.value)
    return [
        (searched, torch.int32),
        (searched, torch.int32),
        ((*searched, 2), torch.float32),
        *scratch_of(*searched),
        ((rows, parts), torch.float32),
    ]


def scratch_of(*searched: int) -> list[Part]:
    """Of each row whose kept set is searched at once: entries that may be kept, their columns, where its
    entries are put while it is read, the parts of it that are read (then the entries, sorted)."""
    kinds = (_SHORT, torch.float32), (_SHORT, torch.int32), (LIST, torch.float32), (_SHORT, torch.int32)
    return [((*searched, size), kind) for size, kind in kinds]


def parts_in(logits: torch.Tensor, piece: int) -> tuple[int, int]:
    """(columns of a part, parts of a row)."""
    part = min(_PART_BYTES // logits.element_size(), piece)
    return part, parts_of(logits.shape[1], part)


def kept_sizes(part: int, parts: int) -> dict[str, int]:
    """What ``truncation_of`` is compiled for."""
    return {
        "PARTS": power_of_2(parts, 2), "PART": part, "SHORT": _SHORT, "LIST": LIST,
        "MOST_PASSES": MOST_PASSES,
    }  # fmt: skip


def _partials(rows: int, pieces: int, has_drafts: int) -> list[Part]:
    kinds = [torch.float32, torch.float32, torch.int32] + [torch.float32] * 2 * has_drafts
    return [((rows, pieces), kind) for kind in kinds]


def partials_of(logits: torch.Tensor, pieces: int, has_drafts: bool) -> tuple[torch.Tensor | None, ...]:
    """By row and piece: largest logit, mass, column of the largest; of the draft logits the first two."""
    made = workspace(logits, _partials, logits.shape[0], pieces, int(has_drafts))
    return made if has_drafts else (*made, None, None)


def layout_of(draft_logits: torch.Tensor | None) -> tuple[int, int, int]:
    """(stride of a slot, stride of a draft, columns)."""
    if draft_logits is None:
        return 0, 0, 0
    return draft_logits.stride(0), draft_logits.stride(1), draft_logits.shape[2]
