"""The same in plain PyTorch and Python, in float64, written like the paper."""

from __future__ import annotations

from itertools import pairwise

import torch

from specctl_kernels.verify_block.launch import NO_TOKEN, NOT_FINITE
from specctl_kernels.verify_rejection.launch import ROUNDING
from specctl_kernels.verify_rejection.reference import (
    _is_finite,
    _sample,
    distribution,
    uniforms_reference,
    verify_rejection_reference,
)

__all__ = [
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
    places = torch.arange(chances.shape[-1])
    is_kept = uniforms < chances[..., 1:]
    return (places[1:] * is_kept).max(-1).values if is_kept.shape[-1] else torch.zeros_like(places[0])


def chances_of_stops(chances: torch.Tensor) -> torch.Tensor:
    """float64[..., K + 1], exactly: the chance that i drafts are kept, h_i times 1 - h_j of all j > i."""
    lost = torch.cat([1 - chances[..., 1:], torch.ones_like(chances[..., :1])], -1)
    return chances * lost.flip(-1).cumprod(-1).flip(-1)


def _chain(
    logits: torch.Tensor,
    drafts: list[int],
    draft_logits: torch.Tensor,
    options: tuple[float, int, float, float],
    uniforms: torch.Tensor,
) -> list[int] | None:
    """What one request emits; None where it came to a row without a distribution."""
    p, q = [], []
    is_known = True
    for row, values in enumerate(logits):
        draft = drafts[row] if row < len(drafts) else NO_TOKEN
        is_draft = 0 <= draft < logits.shape[1]
        is_known = _is_finite(values) and (not is_draft or _is_finite(draft_logits[row]))
        if not (is_known and is_draft):
            break
        p.append(distribution(values, *options))
        q.append(torch.zeros_like(p[-1]))
        q[-1][: draft_logits.shape[1]] = distribution(draft_logits[row], options[0])
    last = len(p)
    kept, ratio = 0, 1.0
    if last:
        rows_p, rows_q, fed = torch.stack(p), torch.stack(q), torch.tensor(drafts[:last])
        ratios = running_ratios(rows_p, rows_q, fed)
        kept = int(kept_drafts(chances_to_keep(rows_p, rows_q, ratios), uniforms[:last, 0]))
        ratio = float(ratios[kept])
    if kept < last:
        weights = residual(p[kept], q[kept], torch.tensor(ratio).double())
        weights = weights if weights.sum() > ROUNDING * ratio else p[kept]
    elif is_known:
        weights = distribution(logits[last], *options)
    else:
        return None
    return [*drafts[:kept], _sample(weights, float(uniforms[kept, 1]))]


def verify_block_reference(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    starts: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    width: int,
    draft_logits: torch.Tensor,
    draft_slots: torch.Tensor,
    uniforms: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``verify_block``."""
    tokens, counts = verify_rejection_reference(
        logits, drafts, starts, temperature, top_k, top_p, min_p, seeds, positions, width=width,
        uniforms=uniforms,
    )  # fmt: skip
    if uniforms is None:
        uniforms = block_uniforms_reference(seeds, positions, starts)
    for req, (start, end) in enumerate(pairwise(starts.tolist())):
        slot = int(draft_slots[req])
        if start == end or slot < 0 or temperature[req] <= 0:
            continue
        options = (
            float(temperature[req]),
            int(top_k[req]) if top_k is not None else 0,
            float(top_p[req]) if top_p is not None else 1.0,
            float(min_p[req]) if min_p is not None else 0.0,
        )
        fed = drafts[start + 1 : end].tolist()
        emitted = _chain(logits[start:end], fed, draft_logits[slot], options, uniforms[start:end])
        counts[req] = NOT_FINITE if emitted is None else len(emitted)
        tokens[req] = NO_TOKEN
        tokens[req, : len(emitted or [])] = torch.tensor(emitted or [], dtype=torch.int64)
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
