"""The same in plain PyTorch and Python, in float64, written like the paper."""

from __future__ import annotations

from itertools import pairwise

import torch

from specctl_kernels.row_argmax.reference import row_argmax_reference
from specctl_kernels.row_law.given import Sampling
from specctl_kernels.verify_block.launch import NO_TOKEN
from specctl_kernels.verify_rejection.launch import ROUNDING
from specctl_kernels.verify_rejection.reference import (
    distribution,
    is_finite,
    uniforms_reference,
    verify_rejection_reference,
)

__all__ = [
    "block_step",
    "block_uniforms_reference",
    "chances_of_stops",
    "chances_to_keep",
    "kept_drafts",
    "residual",
    "running_ratios",
    "verify_block_reference",
]


def running_ratios(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
    """float64[..., K + 1]: r_0 = 1, r_i = min(r_{i-1} p(x_i | x^{i-1}) / q(x_i | x^{i-1}), 1).

    p, q float64[..., K or more, V]: row i is that behind i drafts. drafts int64[..., K]. Where q is 0, a
    token that the target can emit has the ratio 1, another 0.
    """
    ratios = [torch.ones(drafts.shape[:-1], dtype=torch.float64)]
    for i in range(drafts.shape[-1]):
        at = drafts[..., i, None]
        worth = ratios[-1] * p[..., i, :].gather(-1, at)[..., 0]
        price = q[..., i, :].gather(-1, at)[..., 0]
        less = worth / price.clamp(min=1e-300)
        ratios.append(torch.where(worth >= price, (worth > 0).double(), less))
    return torch.stack(ratios, -1)


def residual(p: torch.Tensor, q: torch.Tensor, ratios: torch.Tensor) -> torch.Tensor:
    """float64[..., V]: max(r p - q, 0)."""
    return (ratios[..., None] * p - q).clamp(min=0)


def chances_to_keep(p: torch.Tensor, q: torch.Tensor, ratios: torch.Tensor) -> torch.Tensor:
    """float64[..., K + 1]: h_0 = 1, h_i = Z_{i+1} / (Z_{i+1} + 1 - r_i), h_K = r_K."""
    drafts = ratios.shape[-1] - 1
    left = residual(p[..., :drafts, :], q[..., :drafts, :], ratios[..., :-1]).sum(-1)
    under = left + 1 - ratios[..., :-1]
    chances = torch.where(under > 0, left / under.clamp(min=1e-300), 1.0)
    chances = torch.cat([chances, ratios[..., -1:]], -1)
    chances[..., 0] = 1.0
    return chances


def kept_drafts(chances: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """int64[...]: the largest i with u_i < h_i. uniforms float64[..., K], u_1 first."""
    places = torch.arange(chances.shape[-1]) * torch.cat(
        [torch.ones_like(chances[..., :1]), uniforms < chances[..., 1:]], -1
    )
    return places.long().max(-1).values


def chances_of_stops(chances: torch.Tensor) -> torch.Tensor:
    """float64[..., K + 1], exactly: the chance that i drafts are kept, h_i times 1 - h_j of all j > i."""
    lost = torch.cat([1 - chances[..., 1:], torch.ones_like(chances[..., :1])], -1)
    return chances * lost.flip(-1).cumprod(-1).flip(-1)


def block_step(
    p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64[...] drafts kept, int64[...] the token behind them).

    p float64[..., K + 1, V], q float64[..., K, V], drafts int64[..., K], uniforms float64[..., K + 1, 2].
    """
    ratios = running_ratios(p, q, drafts)
    kept = kept_drafts(chances_to_keep(p, q, ratios), uniforms[..., :-1, 0])
    # Behind the whole block nothing is subtracted, and the weight of p does not matter.
    q = torch.cat([q, torch.zeros_like(p[..., :1, :])], -2)
    ratios = torch.cat([ratios[..., :-1], torch.ones_like(ratios[..., :1])], -1)
    row = kept[..., None, None].expand(*p.shape[:-2], 1, p.shape[-1])
    p, q = p.gather(-2, row)[..., 0, :], q.gather(-2, row)[..., 0, :]
    ratio = ratios.gather(-1, kept[..., None])[..., 0]
    left = residual(p, q, ratio)
    is_left = left.sum(-1, keepdim=True) > ROUNDING * ratio[..., None]
    weights = torch.where(is_left, left, p)
    sample = uniforms[..., 1].gather(-1, kept[..., None])
    is_past = (weights.cumsum(-1) > sample * weights.sum(-1, keepdim=True)) & (weights > 0)
    last = torch.where(weights > 0, torch.arange(weights.shape[-1]), 0).max(-1).values
    return kept, torch.where(is_past.any(-1), is_past.int().argmax(-1), last)


def _chain(
    logits: torch.Tensor,
    drafts: list[int],
    draft_logits: torch.Tensor,
    options: tuple[float, int, float, float],
    uniforms: torch.Tensor,
    not_finite: torch.Tensor,
) -> list[int]:
    """What one request emits."""
    columns = logits.shape[1]
    p, q = [], []
    is_known = has_law = True
    for row, values in enumerate(logits):
        draft = drafts[row] if row < len(drafts) else NO_TOKEN
        is_draft = 0 <= draft < columns
        has_law = is_finite(values)
        is_known = has_law and (not is_draft or is_finite(draft_logits[row]))
        p.append(distribution(values, *options) if has_law else torch.ones(columns, dtype=torch.float64))
        if not (is_known and is_draft):
            break
        q.append(torch.zeros_like(p[-1]))
        q[-1][: draft_logits.shape[1]] = distribution(draft_logits[row], options[0])
    last = len(q)
    rows_q = torch.stack(q) if q else torch.zeros((0, columns), dtype=torch.float64)
    fed = torch.tensor(drafts[:last], dtype=torch.int64)
    kept, token = block_step(torch.stack(p), rows_q, fed, uniforms[: last + 1])
    if int(kept) == last and not is_known:
        not_finite += 1
        if not has_law:
            token = row_argmax_reference(logits[last : last + 1])[0]
    return [*drafts[: int(kept)], int(token)]


def verify_block_reference(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    starts: torch.Tensor,
    sampling: Sampling,
    positions: torch.Tensor,
    *,
    width: int,
    not_finite: torch.Tensor,
    draft_logits: torch.Tensor,
    draft_slots: torch.Tensor,
    uniforms: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``verify_block``."""
    sampling = sampling.at(slots)
    is_block = (draft_slots >= 0) & (sampling.temperature > 0)
    if sampling.top_k is not None:
        is_block &= sampling.top_k != 1
    of_others = logits.masked_fill(is_block.repeat_interleave(starts.diff().long())[:, None], 0.0)
    tokens, counts = verify_rejection_reference(
        of_others, drafts, starts, sampling, positions, width=width, uniforms=uniforms, not_finite=not_finite,
    )  # fmt: skip
    if uniforms is None:
        uniforms = block_uniforms_reference(sampling.seeds, positions, starts)
    for req, (start, end) in enumerate(pairwise(starts.tolist())):
        if start == end or not is_block[req]:
            continue
        fed = drafts[start + 1 : end].tolist()
        given = draft_logits[int(draft_slots[req])]
        emitted = _chain(logits[start:end], fed, given, sampling.of(req), uniforms[start:end], not_finite)
        counts[req] = len(emitted)
        tokens[req] = NO_TOKEN
        tokens[req, : len(emitted)] = torch.tensor(emitted, dtype=torch.int64)
    return tokens, counts


def block_uniforms_reference(
    seeds: torch.Tensor, positions: torch.Tensor, starts: torch.Tensor
) -> torch.Tensor:
    """float64[N, 2]: what a row is judged by, from its request's first position and its place; what a token
    is sampled with, from its own position."""
    lengths = starts.diff().long()
    first = starts[:-1].long().repeat_interleave(lengths)
    places = torch.arange(len(positions)) - first
    seeds = seeds.repeat_interleave(lengths)
    judged = uniforms_reference(seeds, positions[first], places)
    return torch.stack([judged[:, 0], uniforms_reference(seeds, positions)[:, 1]], 1)
