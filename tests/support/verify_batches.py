"""What batches to verify are made of, for chains, blocks and trees of drafts."""

from __future__ import annotations

from typing import Any

import torch
from specctl_kernels.row_law.given import Sampling

__all__ = [
    "DTYPES", "OPTIONS", "chain_batch", "coarse_logits", "drawn_options", "options_by_slot", "packed",
    "two_requests", "uniforms_for", "with_draft_logits",
]  # fmt: skip

DTYPES = [torch.float32, torch.bfloat16, torch.float16]

OPTIONS = {
    "none": (None, None, None),
    "top_k": ([1, 2, 5, 40, 0, 3000], None, None),
    "top_p": (None, [0.3, 0.9, 0.95, 1.0, 0.999, 0.0], None),
    "min_p": (None, None, [0.0, 0.1, 0.5, 1.0, 1e-4, 0.03]),
    "mixed": ([0, 3, 50, 3000, 1, 7], [0.95, 1.0, 0.7, 0.99, 0.9, 0.6], [0.0, 0.05, 0.2, 0.0, 1e-6, 0.01]),
}
"""Values of top-k, top-p and min-p; None: off in the whole batch."""


def coarse_logits(rows: int, vocabulary: int) -> torch.Tensor:
    """float32[rows, vocabulary] on a grid of quarters, some of them -inf; no row is without a number."""
    logits = torch.randn(rows, vocabulary).mul(12).round().div(4)
    logits[torch.rand(rows, vocabulary) > 0.97] = float("-inf")
    logits[:, 0] = logits[:, 0].clamp(min=-3.0)
    return logits


def drawn_options(options: str, requests: int) -> dict[str, torch.Tensor | None]:
    """One of the values of ``OPTIONS`` for each request."""
    kinds = {"top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
    return {
        name: None if values is None else torch.tensor(values, dtype=kind)[torch.randint(0, 6, (requests,))]
        for (name, kind), values in zip(kinds.items(), OPTIONS[options], strict=True)
    }


def packed(given: dict[str, Any]) -> dict[str, Any]:
    """As the calls take it; for a greedy call as it is."""
    if "temperature" not in given:
        return given
    sampling = Sampling(*(given[name] for name in Sampling._fields))
    own = {k: v for k, v in given.items() if k not in Sampling._fields} | {"sampling": sampling}
    # Trees count no rows.
    if "starts" in given and "not_finite" not in given:
        own["not_finite"] = torch.zeros(1, dtype=torch.int64, device=given["logits"].device)
    return own


def chain_batch(
    requests: int, vocabulary: int, dtype: torch.dtype, options: str, *, width: int = 5, seed: int = 0
) -> dict[str, Any]:
    """Requests of 0 to ``width`` rows, every third one greedy; most drafts are likely tokens."""
    torch.manual_seed(1000 * requests + vocabulary + seed)
    rows = torch.randint(0, width + 1, (requests,))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)]).to(torch.int32)
    total = int(starts[-1])
    logits = coarse_logits(total, vocabulary)
    drafts = logits.argmax(1).roll(1) if total else torch.zeros(0, dtype=torch.int64)
    other = torch.rand(total)
    drafts = torch.where(other < 0.3, torch.randint(0, vocabulary, (total,)), drafts)
    drafts = torch.where(other > 0.97, -1, drafts)
    # Of a broad law over many ids, a uniform is no longer far from an edge.
    degrees = [0.8, 1.0, 0.0, 0.01, 1.5, 100.0] if vocabulary < 10_000 else [0.3, 0.2, 0.0, 0.01, 0.25, 0.1]
    temperature = torch.tensor(degrees)[torch.arange(requests) % 6]
    cuts = drawn_options(options, requests)
    return {
        "logits": logits.to(dtype), "drafts": drafts.to(torch.int32), "starts": starts,
        "temperature": temperature, **cuts,
        "seeds": torch.randint(-(2**62), 2**62, (requests,)),
        "positions": torch.randint(0, 2**40, (total,)), "width": width,
    }  # fmt: skip


def with_draft_logits(given: dict[str, Any], dtype: torch.dtype, columns: int) -> dict[str, Any]:
    """For every second request: near the target's, as a good draft head's. Not as cold as a probability that
    float32 cannot hold, since no draft would come of it."""
    requests, width = len(given["seeds"]), given["width"]
    draft_logits = torch.full((requests + 2, width - 1, columns), float("nan"), dtype=dtype)
    slots = torch.randperm(requests + 2)[:requests].to(torch.int32)
    slots[::2] = -1
    for req, slot in enumerate(slots.tolist()):
        start, end = given["starts"][req : req + 2].tolist()
        if slot >= 0 and end > start + 1:
            near = given["logits"][start : end - 1, :columns].float()
            near = near + torch.randn(near.shape).mul(4).round().div(4)
            draft_logits[slot, : end - start - 1] = near.to(dtype)
    temperature = given["temperature"]
    temperature = torch.where(temperature == 0.01, 0.3, temperature)
    return given | {"temperature": temperature, "draft_logits": draft_logits, "draft_slots": slots}


def uniforms_for(given: dict[str, Any]) -> torch.Tensor:
    return torch.rand(len(given["positions"]), 2, dtype=torch.float64)


def options_by_slot(given: dict[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
    """The same five requests with their options at eight slots, and the slots."""
    slots = torch.tensor([6, 0, 3, 1, 5])
    moved = {}
    for name in Sampling._fields:
        moved[name] = torch.full((8,), -1).to(given[name].dtype)
        moved[name][slots] = given[name]
    return given | moved, slots


def two_requests() -> dict[str, Any]:
    """A batch of the right shapes: two rows each, nine columns."""
    return {
        "logits": torch.zeros(4, 9), "drafts": torch.zeros(4, dtype=torch.int32),
        "starts": torch.tensor([0, 2, 4], dtype=torch.int32), "temperature": torch.ones(2), "top_k": None,
        "top_p": torch.ones(2), "min_p": None, "seeds": torch.zeros(2, dtype=torch.int64),
        "positions": torch.zeros(4, dtype=torch.int64), "width": 3,
    }  # fmt: skip
