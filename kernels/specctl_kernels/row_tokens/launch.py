"""The calls of row_tokens, and what verifies a chain of drafts by it."""

from __future__ import annotations

import torch

from specctl_kernels.dependent_launch import followed_early, launched_early
from specctl_kernels.row_tokens.kernel import CANDIDATES, ROUNDS, chain_kernel, row_tokens_kernel
from specctl_kernels.sizes import parts_of, power_of_2
from specctl_kernels.workspace import Part, workspace

__all__ = ["DRAWS", "lanes_in", "row_tokens", "verify_chain"]

DRAWS = ROUNDS.value * CANDIDATES.value + 1
"""Random numbers that a row may take."""
_RUN_BYTES = 16
_LANES_MOST = 1024
_LIST = 2048
_MOST_PASSES = 256
_FEW_ROWS = 132
_STAGES, _STAGES_OF_FEW = 3, 6
_WARPS, _WARPS_OF_FEW = 8, 16
_REGISTERS = 64


def lanes_in(columns: int, run: int) -> int:
    """By vocabulary and dtype alone, as a sum in another order could move a token."""
    return min(_LANES_MOST, power_of_2(parts_of(columns, run), 16))


def row_tokens(
    logits: torch.Tensor,
    starts: torch.Tensor,
    options: tuple[torch.Tensor | None, ...],
    positions: torch.Tensor | None,
    *,
    width: int,
    is_first: bool = True,
    uniforms: torch.Tensor | None = None,
) -> torch.Tensor:
    """int32[N], in memory of the next call too: of each row the first largest logit where its request is
    greedy, else a sample of softmax(logits / temperature), cut by min-p, top-k and top-p as in
    ``verify_rejection``; -2 less the first largest column where a sampled row has a NaN, a +inf or nothing
    finite.

    A sample that follows the whole law and is kept by the cuts has the law that the cuts leave: samples are
    drawn until one is kept, which is checked by what lies above it (the kept set itself, which takes sorting
    or many reads, is not asked for). Sampling by rejection from the cut law: FlashInfer (Ye et al. 2025,
    arXiv 2501.01005).

    logits    [N, V], rows contiguous, bfloat16, float16 or float32
    starts    int32[R + 1], the first row of each request, ending with N; a request has ``width`` rows at most
    options   temperature float32[R] (None: all greedy), top_k int32[R], top_p float32[R], min_p float32[R]
              (None: off in the whole batch), seeds int64[R]
    positions int64[N]; a row's numbers are those of its seed, its position and the places from 0 on
    is_first  no kernel of the same call was launched before
    uniforms  float64[N, DRAWS] in [0, 1) instead of the random numbers
    """
    rows, columns = logits.shape
    temperature, top_k, top_p, min_p, seeds = options
    run = _RUN_BYTES // logits.element_size()
    lanes = lanes_in(columns, run)
    is_limited = not (top_k is None and top_p is None and min_p is None)
    tokens, taken, lists = workspace(logits, _parts, rows, lanes * is_limited)
    cuts = (taken, lists) if is_limited else (None, None)
    is_few = rows <= _FEW_ROWS
    if rows:
        row_tokens_kernel[((starts.shape[0] - 1) * width,)](
            logits, logits.stride(0), columns, starts, temperature, top_k, top_p, min_p, seeds, positions,
            uniforms, *cuts, tokens, width, LANES=lanes, RUN=run,
            TILES=power_of_2(parts_of(columns, lanes * run)), STAGES=_STAGES_OF_FEW if is_few else _STAGES,
            LIST=_LIST, MOST_PASSES=_MOST_PASSES, num_warps=_WARPS_OF_FEW if is_few else _WARPS,
            IS_FOLLOWED=followed_early(logits.device)["IS_EARLY"], **_registers(logits.device),
            **launched_early(logits.device, is_first=is_first),
        )  # fmt: skip
    return tokens


def verify_chain(
    tokens: torch.Tensor,
    drafts: torch.Tensor,
    starts: torch.Tensor,
    width: int,
    not_finite: torch.Tensor | None,
    no_token: int,
    marked: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64[R, width], int32[R]), what each request emits: its rows' tokens as far as its drafts are those,
    and one more. A request that came to a row without a distribution is counted in ``not_finite``; without
    one its count is ``marked``."""
    requests = starts.shape[0] - 1
    emitted = tokens.new_empty((requests, width), dtype=torch.int64)
    counts = tokens.new_empty(requests, dtype=torch.int32)
    if requests:
        chain_kernel[(requests,)](
            tokens, drafts, starts, emitted, width, counts, not_finite, width, NO_TOKEN=no_token,
            NOT_FINITE=marked, ROWS=power_of_2(width, 2), num_warps=1, **launched_early(tokens.device),
        )  # fmt: skip
    return emitted, counts


def _parts(rows: int, lanes: int) -> list[Part]:
    return [
        ((rows,), torch.int32),
        ((rows, lanes), torch.int32),
        ((rows, _LIST * (lanes > 0)), torch.float32),
    ]


def _registers(device: torch.device) -> dict[str, int]:
    return {"maxnreg": _REGISTERS} if device.type == "cuda" and not torch.version.hip else {}
