"""The same in plain PyTorch and Python, in float64, written like the papers."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch

from specctl_kernels.row_argmax.reference import row_argmax_reference
from specctl_kernels.row_law.given import Sampling
from specctl_kernels.verify_rejection.launch import NO_TOKEN, PIECE, ROUNDING
from specctl_kernels.verify_rejection.one_hot import ROUNDS

__all__ = [
    "distribution", "is_finite", "law_of_two", "sample_by", "uniforms_reference",
    "verify_rejection_reference",
]  # fmt: skip

_MASK = 2**32 - 1


def _softmax(logits: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(exp((x - max) / T), the largest x); the factor is rounded to float32, as in the kernel."""
    factor = torch.tensor(1.4426950408889634).div(torch.tensor(temperature)).clamp(1e-30, 1e30).double()
    values = logits.double()
    return torch.exp2((values - values.max()) * factor), values.max()


def distribution(
    logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> torch.Tensor:
    """float64[V], what a target with these options samples from.

    Entries that tie with the last one kept are kept as well, but at ``top_k`` 1: the first of the largest.
    """
    weights, _ = _softmax(logits, temperature)
    if top_k == 1:
        return torch.zeros_like(weights).index_fill(0, logits.argmax(), 1.0)
    if min_p > 0:
        weights = weights * (weights >= min_p)
    # Logits order the entries: at a temperature of infinity all weights are equal.
    values = logits.double()
    ordered = values.sort(descending=True)
    if 0 < top_k < len(weights):
        weights = weights * (values >= ordered.values[top_k - 1])
    if top_p < 1:
        largest = weights[ordered.indices]
        mass_before = largest.cumsum(0) - largest
        is_kept = (mass_before < max(top_p, 1e-300) * weights.sum()) & (largest > 0)
        weights = weights * (values >= ordered.values[is_kept].min())
    return weights / weights.sum()


def sample_by(weights: torch.Tensor, uniform: float) -> int:
    """The first index up to which more than ``uniform`` of the weights lies."""
    is_past = (weights.cumsum(0) > uniform * weights.sum()) & (weights > 0)
    return int(is_past.int().argmax()) if bool(is_past.any()) else int((weights > 0).nonzero()[-1])


def is_finite(logits: torch.Tensor) -> bool:
    """Whether a row has a distribution."""
    return bool((logits < float("inf")).all()) and bool((logits > float("-inf")).any())


def rounds_of(vocabulary: int, top_k: int, top_p: float, min_p: float) -> int:
    """Samples of the whole law that are drawn before what is kept is sampled from by itself."""
    is_top_k = 0 < top_k < vocabulary
    if top_p < 1 and (is_top_k or min_p > 0):
        return 0
    return 1 if min_p > 0 else ROUNDS.value


def first_kept(
    logits: torch.Tensor, options: tuple[float, int, float, float], draft: int, rounds: list[Any]
) -> int:
    """A sample of what the options keep: the first that is kept of samples of the whole law, each with two
    numbers of its own; the last two are for a sample of what is kept alone. With min-p the whole is that of
    the pieces of the row that have an entry which it keeps."""
    whole, kept = distribution(logits, options[0]), distribution(logits, *options)
    if options[3] > 0:
        reaching = distribution(logits, options[0], 0, 1.0, options[3]) > 0
        share = whole[draft].clone() if 0 <= draft < len(whole) else None
        for piece in range(0, len(whole), PIECE):
            whole[piece : piece + PIECE] *= bool(reaching[piece : piece + PIECE].any())
        total = whole.sum()
        if share is not None:
            # Also where its piece is left out; it is not kept then.
            whole[draft] = share
        whole = whole / total
    for accept, sample in rounds[:-1]:
        token = _one_of(whole, draft, accept, sample)
        if kept[token] > 0:
            return token
    return _one_of(kept, draft, *rounds[-1])


def _one_of(law: torch.Tensor, draft: int, accept: float, sample: float) -> int:
    """The draft, if a first number is under its probability, else one of the others by a second."""
    if not 0 <= draft < len(law):
        return sample_by(law, sample)
    if accept < law[draft]:
        return draft
    others = law.index_fill(0, torch.tensor(draft), 0.0)
    return sample_by(others if others.sum() > 0 else law, sample)


def _chain(
    logits: torch.Tensor,
    drafts: list[int],
    draft_logits: torch.Tensor | None,
    options: tuple[float, int, float, float],
    uniforms: torch.Tensor,
    later: torch.Tensor | None,
    not_finite: torch.Tensor,
) -> list[int]:
    """What one request emits. ``later``: of each row the numbers of its later rounds, where no draft of the
    batch has a distribution."""
    emitted: list[int] = []
    for row, values in enumerate(logits):
        draft = drafts[row] if row < len(drafts) else NO_TOKEN
        if not is_finite(values):
            not_finite += 1
            return [*emitted, int(values.double().nan_to_num(-math.inf, math.inf, -math.inf).argmax())]
        p = distribution(values, *options)
        accept, sample = uniforms[row].tolist()
        if later is not None:
            rounds = [(accept, sample), *later[row].tolist()]
            rounds = rounds[: rounds_of(len(values), *options[1:]) + 1]
            emitted.append(first_kept(values, options, draft, rounds))
            if emitted[-1] != draft:
                return emitted
            continue
        if not 0 <= draft < len(p):
            return [*emitted, sample_by(p, sample)]
        if draft_logits is not None and not is_finite(draft_logits[row]):
            not_finite += 1
            return [*emitted, sample_by(p, sample)]
        q = torch.zeros_like(p)
        q[draft] = 1.0
        least = 0.0
        if draft_logits is not None:
            q = torch.zeros_like(p)
            q[: draft_logits.shape[1]] = distribution(draft_logits[row], options[0])
            least = ROUNDING
        if accept * q[draft] < p[draft]:
            emitted.append(draft)
            continue
        residual = (p - q).clamp(min=0)
        return [*emitted, sample_by(residual if residual.sum() > least else p, sample)]
    raise AssertionError("the last row holds no draft")


def verify_rejection_reference(
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
    """As ``verify_rejection``."""
    sampling = sampling.at(slots)
    bounds = starts.tolist()
    tokens = torch.full((len(bounds) - 1, width), NO_TOKEN, dtype=torch.int64)
    counts = torch.zeros(len(bounds) - 1, dtype=torch.int32)
    if uniforms is None:
        lengths = torch.tensor([end - start for start, end in pairwise(bounds)], dtype=torch.int64)
        uniforms = uniforms_reference(sampling.seeds.repeat_interleave(lengths), positions)
    for req, (start, end) in enumerate(pairwise(bounds)):
        if start == end:
            continue
        fed = drafts[start + 1 : end].tolist()
        law = sampling.of(req)
        if law[0] > 0 and law[1] != 1:
            slot = int(draft_slots[req]) if draft_slots is not None else -1
            given = draft_logits[slot] if draft_logits is not None and slot >= 0 else None
            numbers = uniforms[start:end]
            later = (
                _later_rounds(int(sampling.seeds[req]), positions[start:end])
                if draft_logits is None
                else None
            )
            emitted = _chain(logits[start:end], fed, given, law, numbers, later, not_finite)
        else:
            choices = row_argmax_reference(logits[start:end]).tolist()
            kept = [choice == draft for choice, draft in zip(choices, [*fed, None], strict=True)]
            emitted = choices[: kept.index(False) + 1]
        counts[req] = len(emitted)
        tokens[req, : len(emitted)] = torch.tensor(emitted, dtype=torch.int64)
    return tokens, counts


def _later_rounds(seed: int, positions: torch.Tensor) -> torch.Tensor:
    """float64[N, rounds, 2]"""
    rounds = torch.arange(1, ROUNDS.value + 1)
    places = rounds.repeat(len(positions))
    at = positions.repeat_interleave(len(rounds))
    return uniforms_reference(places * 0 + seed, at, places).view(len(positions), len(rounds), 2)


def uniforms_reference(
    seeds: torch.Tensor, positions: torch.Tensor, places: torch.Tensor | None = None
) -> torch.Tensor:
    """float64[N, 2] of int64[N] seeds, positions and places (the counter's third number): Philox4x32-10,
    Salmon et al. 2011, section 3."""
    places = torch.zeros_like(positions) if places is None else places
    out = torch.empty((len(seeds), 2), dtype=torch.float64)
    counters = zip(seeds.tolist(), positions.tolist(), places.tolist(), strict=True)
    for row, (seed, position, place) in enumerate(counters):
        key = [seed & _MASK, seed >> 32 & _MASK]
        block = [position & _MASK, position >> 32 & _MASK, place, 0]
        for _ in range(10):
            left, right = 0xD2511F53 * block[0], 0xCD9E8D57 * block[2]
            block = [
                right >> 32 ^ block[1] ^ key[0],
                right & _MASK,
                left >> 32 ^ block[3] ^ key[1],
                left & _MASK,
            ]
            key = [key[0] + 0x9E3779B9 & _MASK, key[1] + 0xBB67AE85 & _MASK]
        out[row, 0] = (block[0] << 32 | block[1]) >> 11
        out[row, 1] = (block[2] << 32 | block[3]) >> 11
    return out * 2.0**-53


def law_of_two(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """float64[V, V], exactly: the law of the first two tokens that a chain of two drafts emits, where p[1, x]
    and q[1, x] follow p[0, 0] and q[0, 0]; behind a single one stands a sample of the target's own."""
    kept = torch.minimum(p, q)
    lost = (p - q).clamp(min=0)
    lost = lost / lost.sum(-1, keepdim=True).clamp(min=1e-300) * (1 - kept.sum(-1, keepdim=True))
    return lost[0, 0][:, None] * p[1] + kept[0, 0][:, None] * (kept[1] + lost[1])
