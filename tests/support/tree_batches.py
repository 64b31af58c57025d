"""Batches of draft trees to verify, by their links."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from support.verify_batches import coarse_logits, drawn_options

__all__ = ["links_of", "shaped", "tree_batch"]

SHAPES = ("star", "chain", "binary", "random")


def shaped(shape: str, rows: int) -> list[int]:
    """Parents."""
    if shape == "random":
        return [-1, *(int(torch.randint(max(0, row - 4), row, ())) for row in range(1, rows))][:rows]
    of = {"star": lambda row: 0, "chain": lambda row: row - 1, "binary": lambda row: (row - 1) // 2}[shape]
    return [-1, *(of(row) for row in range(1, rows))][:rows]


def links_of(parents: list[int]) -> tuple[list[int], list[int]]:
    """(first child, next sibling) of each row; a row with parent -1 that is no root is padding."""
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(parents):
        if parent >= 0:
            children.setdefault(parent, []).append(row)
    first, sibling = [-1] * len(parents), [-1] * len(parents)
    for parent, own in children.items():
        first[parent] = own[0]
        for left, right in pairwise(own):
            sibling[left] = right
    return first, sibling


def tree_batch(
    requests: int, rows: int, vocabulary: int, dtype: torch.dtype, options: str, *, seed: int = 0,
    shape: str | None = None, logits: torch.Tensor | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Requests of so many rows, every third greedy, every fourth with rows that are not in its tree; the k-th
    child of a row is its k-th likely token, or any. logits: instead of coarse ones."""
    torch.manual_seed(1000 * requests + vocabulary + seed)
    total = requests * rows
    if logits is None:
        logits = coarse_logits(total, vocabulary)
    drafts = torch.zeros(total, dtype=torch.int32)
    links = []
    for req in range(requests):
        parents = shaped(shape or SHAPES[(req + seed) % 4], rows)
        if shape is None and req % 4 == 3:
            parents[rows // 2 + 1 :] = [-1] * (rows - rows // 2 - 1)
        links.append(links_of(parents))
        for row in range(rows):
            children = [req * rows + child for child, parent in enumerate(parents) if parent == row]
            if children:
                likely = logits[req * rows + row].float().topk(min(len(children), vocabulary)).indices
                any_of = torch.randint(0, vocabulary, likely.shape)
                drawn = torch.where(torch.rand(len(likely)) < 0.3, any_of, likely)
                drafts[children] = drawn[torch.arange(len(children)) % len(drawn)].to(torch.int32)
    drafts[torch.rand(total) > 0.97] = -1
    first, sibling = (
        torch.tensor([one[i] for one in links], dtype=torch.int64).view(requests, rows) for i in (0, 1)
    )
    degrees = [0.8, 1.0, 0.0, 0.01, 1.5, 100.0] if vocabulary < 10_000 else [0.3, 0.2, 0.0, 0.01, 0.25, 0.1]
    return {
        "logits": logits.to(dtype), "drafts": drafts, "first_child": first, "next_sibling": sibling,
        "temperature": torch.tensor(degrees)[torch.arange(requests) % 6], **drawn_options(options, requests),
        "seeds": torch.randint(-(2**62), 2**62, (requests,)), "positions": torch.randint(0, 2**40, (total,)),
        "depth": rows,
    }  # fmt: skip
