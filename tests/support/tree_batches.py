"""Batches of draft trees to verify: random ones, and many requests with one tree."""

from __future__ import annotations

from typing import Any

import torch
from specctl_kernels.verify_rejection.reference import distribution
from support.verify_batches import OPTIONS, coarse_logits, drawn_options

__all__ = ["OPTIONS", "chain", "shaped", "tree_batch"]

SHAPES = ("star", "chain", "binary", "random")


def shaped(shape: str, rows: int) -> list[int]:
    """Parents."""
    if shape == "random":
        return [-1, *(int(torch.randint(max(0, row - 4), row, ())) for row in range(1, rows))][:rows]
    of = {"star": lambda row: 0, "chain": lambda row: row - 1, "binary": lambda row: (row - 1) // 2}[shape]
    return [-1, *(of(row) for row in range(1, rows))][:rows]


def chain(starts: torch.Tensor) -> torch.Tensor:
    """Parents of requests that were each drafted a chain."""
    rows = torch.arange(int(starts[-1]), dtype=torch.int32)
    first = torch.repeat_interleave(starts[:-1], starts.diff().long())
    return (rows - first - 1).to(torch.int32)


def tree_batch(
    requests: int, vocabulary: int, dtype: torch.dtype, options: str, *, width: int = 6, seed: int = 0,
    draft_dtype: torch.dtype | None = None, draft_columns: int = 0, full: bool = False,
    shape: str | None = None, logits: torch.Tensor | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Requests of 0 to ``width`` rows (``full``: of ``width``), every third greedy; most drafts are likely
    tokens. draft_dtype: of every second request, the children are sampled from laws near the target's; not as
    cold as a probability that float32 cannot hold, since no draft would come of it. logits: instead of coarse
    ones."""
    torch.manual_seed(1000 * requests + vocabulary + seed)
    rows = torch.full((requests,), width) if full else torch.randint(0, width + 1, (requests,))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)]).to(torch.int32)
    total = int(starts[-1])
    if logits is None:
        logits = coarse_logits(total, vocabulary)
    shapes = [shaped(shape or SHAPES[(req + seed) % 4], size) for req, size in enumerate(rows.tolist())]
    parents = torch.tensor([parent for one in shapes for parent in one], dtype=torch.int32)
    degrees = [0.8, 1.0, 0.0, 0.01, 1.5, 100.0] if vocabulary < 10_000 else [0.3, 0.2, 0.0, 0.01, 0.25, 0.1]
    cuts = drawn_options(options, requests)
    given: dict[str, Any] = {
        "logits": logits.to(dtype), "drafts": torch.zeros(total, dtype=torch.int32), "parents": parents,
        "starts": starts, "temperature": torch.tensor(degrees)[torch.arange(requests) % 6],
        **cuts,
        "seeds": torch.randint(-(2**62), 2**62, (requests,)),
        "positions": torch.randint(0, 2**40, (total,)), "width": width,
    }  # fmt: skip
    if draft_dtype is not None:
        given["temperature"][given["temperature"] == 0.01] = 0.3
        slots = torch.randperm(requests + 2)[:requests].to(torch.int32)
        slots[1::4] = -1
        given["draft_slots"] = slots
        given["draft_logits"] = torch.full(
            (requests + 2, max(width - 1, 1), draft_columns), float("nan"), dtype=draft_dtype
        )
    for req in range(requests):
        _draft(given, req)
    given["drafts"][torch.rand(total) > 0.97] = -1
    return given


def _draft(given: dict[str, Any], req: int) -> None:
    """The k-th child of a row is its k-th likely token, or any; or sampled, from laws that are stored."""
    start, end = given["starts"][req : req + 2].tolist()
    slot = int(given["draft_slots"][req]) if "draft_slots" in given else -1
    parents = given["parents"][start:end].tolist()
    for row in range(end - start):
        children = [start + child for child, parent in enumerate(parents) if parent == row]
        values = given["logits"][start + row].float()
        if not children:
            continue
        if slot >= 0:
            near = values[: given["draft_logits"].shape[2]]
            near = near + torch.randn(near.shape).mul(4).round().div(4)
            given["draft_logits"][slot, row] = near
            temperature = float(given["temperature"][req]) or 1.0
            law = distribution(given["draft_logits"][slot, row], temperature)
            drawn = torch.multinomial(law, min(len(children), int((law > 1e-30).sum())))
        else:
            drawn = values.topk(min(len(children), len(values))).indices
            drawn = torch.where(
                torch.rand(len(drawn)) < 0.3, torch.randint(0, len(values), drawn.shape), drawn
            )
        for place, child in enumerate(children):
            given["drafts"][child] = drawn[place % len(drawn)]
