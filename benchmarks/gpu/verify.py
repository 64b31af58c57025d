"""Verify kernels on a GPU: time against one read of the logits, and against vLLM's own, by shape.

    python -m benchmarks.gpu.verify --output FILE

Each call is given other logits than the one before, together more than the cache holds. Ours and the engine's
take turns. First every shape is checked: same tokens from both.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from specctl_kernels.verify_greedy import verify_greedy

from benchmarks.gpu.timing import taken_in_turn
from testing.provenance import pairwise_ratios, summary

ROWS = (8, 64, 512, 1024, 2048)
VOCABULARIES = (32_000, 128_256, 151_936, 262_144)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
DRAFTS = 7
READ_BYTES_PER_S = 4.3e12
"""What an H200's memory gives to a copy, counting both ways."""
_ROTATED_BYTES = 512 * 2**20
_CALLS = 20


class Case:
    """Rows of requests with ``DRAFTS`` drafts each; a draft is the target's own choice 4 times of 5."""

    def __init__(self, rows: int, vocabulary: int, dtype: torch.dtype) -> None:
        self.rows, self.vocabulary, self.dtype = rows, vocabulary, dtype
        self.requests = rows // (DRAFTS + 1)
        count = max(2, -(-_ROTATED_BYTES // (rows * vocabulary * dtype.itemsize)))
        torch.manual_seed(rows + vocabulary)
        self.logits = [
            torch.randn(rows, vocabulary, device="cuda", dtype=dtype) for _ in range(min(count, 64))
        ]
        self.drafts = [self._drafts(one) for one in self.logits]
        self.starts = torch.arange(self.requests + 1, device="cuda", dtype=torch.int32) * (DRAFTS + 1)
        rows_of = torch.arange(rows, device="cuda", dtype=torch.int32)
        self.slots = torch.div(rows_of, DRAFTS + 1, rounding_mode="floor").to(torch.int32)
        self.places = (rows_of % (DRAFTS + 1)).to(torch.int32)
        self.positions = self.places.long()
        self.mapping = torch.arange(self.requests, device="cuda", dtype=torch.int32)
        self.temperature = torch.zeros(self.requests, device="cuda")
        self.seeds = torch.zeros(self.requests, device="cuda", dtype=torch.int64)

    @staticmethod
    def _drafts(logits: torch.Tensor) -> torch.Tensor:
        drafts = logits.argmax(dim=1).roll(1)
        wrong = torch.rand(len(logits), device="cuda") < 0.2
        return torch.where(wrong, 0, drafts).to(torch.int32)

    def ours(self, i: int) -> Any:
        return verify_greedy(self.logits[i], self.drafts[i], self.starts, width=DRAFTS + 1)

    def engine(self, i: int) -> Any:
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

        return rejection_sample(
            self.logits[i], None, self.drafts[i], self.starts, self.positions, self.mapping, self.slots,
            self.places, self.temperature, self.seeds, DRAFTS,
        )  # fmt: skip

    def check(self) -> None:
        mine, theirs = self.ours(0), self.engine(0)
        assert torch.equal(mine[1], theirs[1].to(torch.int32)), "other numbers of tokens"
        for tokens, others, count in zip(mine[0].tolist(), theirs[0].tolist(), mine[1].tolist(), strict=True):
            assert tokens[:count] == others[:count], "other tokens"


def measured(case: Case, repeats: int) -> dict[str, Any]:
    case.check()
    arms: dict[str, Callable[[int], Any]] = {"ours": case.ours, "engine": case.engine}
    taken = taken_in_turn(arms, repeats, len(case.logits), _CALLS)
    floor_us = case.rows * case.vocabulary * case.dtype.itemsize / READ_BYTES_PER_S * 1e6
    return {
        "us": {name: summary(values) for name, values in taken.items()},
        "ours against the engine's": summary(pairwise_ratios(taken["engine"], taken["ours"])),
        "ours over one read": summary([mine / floor_us for mine in taken["ours"]]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    for (name, dtype), vocabulary, rows in itertools.product(DTYPES.items(), VOCABULARIES, ROWS):
        found = measured(Case(rows, vocabulary, dtype), arguments.repeats)
        figures[f"{name}, vocabulary {vocabulary}, {rows} rows"] = found
        medians = {arm: value["median"] for arm, value in found["us"].items()}
        print(name, vocabulary, rows, medians, found["ours over one read"]["median"], flush=True)
        torch.cuda.empty_cache()
    arguments.output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
