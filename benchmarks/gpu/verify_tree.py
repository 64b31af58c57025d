"""Verification of trees on a GPU: time over one read of the logits, and against SGLang's path.

    python -m benchmarks.gpu.verify_tree --output FILE [--max-s 55] [--quick]

64 requests of 8, 16 or 32 rows, two children to a row, not sampled (as SGLang's trees). Each call is given
other logits than the one before, together more than the cache holds; arms take turns. Logits are a Zipf law
of exponent 1.5, in any order. SGLang's arm is there if ``sgl_kernel`` is: softmax, top_k_renorm_prob,
top_p_renorm_prob and tree_speculative_sampling_target_only as its EAGLE worker calls them; argmax and
verify_tree_greedy for greedy. First each kind of case is checked: ours against the reference for some
requests, and against SGLang its tokens if greedy, else its mean number of them. Where that fails there is no
ratio. ``--quick``: tiny shapes, any device.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from specctl_kernels.verify_tree import verify_greedy_tree, verify_tree
from specctl_kernels.verify_tree.reference import verify_greedy_tree_reference, verify_tree_reference

from benchmarks.gpu.timing import taken_in_turn
from benchmarks.gpu.verify import READ_BYTES_PER_S
from benchmarks.provenance import pairwise_ratios, provenance, summary

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
HAS_SGLANG = IS_GPU and importlib.util.find_spec("sgl_kernel") is not None
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
TOP_P = {"greedy": 1.0, "temperature": 1.0, "top-p": 0.95}
TEMPERATURE = 0.8
ZIPF = 1.5
SEED = 1000
_CHECKED_REQUESTS = 1
_SIGMAS = 5.0


class Case:
    """Requests with one binary tree each; a row's first child is its likeliest token 2 times of 3."""

    def __init__(self, requests: int, rows: int, vocabulary: int, dtype: torch.dtype, copies: int) -> None:
        self.requests, self.rows, self.vocabulary, self.dtype = requests, rows, vocabulary, dtype
        torch.manual_seed(requests + rows + vocabulary)
        self.parents_of_tree = [-1, *((row - 1) // 2 for row in range(1, rows))]
        self.parents = self._of_rows(self.parents_of_tree)
        self.logits = [self._logits() for _ in range(copies)]
        self.drafts = [self._drafts(one) for one in self.logits]
        self.starts = torch.arange(requests + 1, device=DEVICE, dtype=torch.int32) * rows
        depths = [0] * rows
        for row in range(1, rows):
            depths[row] = depths[self.parents_of_tree[row]] + 1
        self.deepest = max(depths)
        self.positions = self._of_rows([1000 + depth for depth in depths]).long()
        self.seeds = torch.arange(requests, device=DEVICE) + SEED
        self.temperature = torch.full((requests,), TEMPERATURE, device=DEVICE)
        self.links = SglangLinks(self) if HAS_SGLANG else None

    @property
    def bytes(self) -> int:
        return self.requests * self.rows * self.vocabulary * self.dtype.itemsize

    def _of_rows(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE).repeat(self.requests)

    def _logits(self) -> torch.Tensor:
        uniform = torch.rand(self.requests * self.rows, self.vocabulary, device=DEVICE)
        return uniform.mul_(self.vocabulary).add_(1).log_().mul_(-ZIPF).add_(20.0).to(self.dtype)

    def _drafts(self, logits: torch.Tensor) -> torch.Tensor:
        likely = logits.topk(2, dim=1).indices.view(self.requests, self.rows, 2)
        at = torch.arange(1, self.rows, device=DEVICE)
        drafts = torch.zeros(self.requests, self.rows, dtype=torch.int64, device=DEVICE)
        drafts[:, 1:] = likely[:, (at - 1) // 2, (at - 1) % 2]
        other = torch.randint(0, self.vocabulary, drafts.shape, device=DEVICE)
        return torch.where(torch.rand(drafts.shape, device=DEVICE) < 1 / 3, other, drafts).flatten()

    def arguments(self, mode: str, copy: int, requests: int | None = None) -> tuple[Any, ...]:
        """Of ``verify_tree``, for the first requests."""
        many = self.requests if requests is None else requests
        rows = many * self.rows
        top_p = torch.full((many,), TOP_P[mode], device=DEVICE) if TOP_P[mode] < 1 else None
        tree = (
            self.logits[copy][:rows],
            self.drafts[copy][:rows],
            self.parents[:rows],
            self.starts[: many + 1],
        )
        if mode == "greedy":
            return tree
        options = (self.temperature[:many], None, top_p, None, self.seeds[:many], self.positions[:rows])
        return (*tree, *options)


class SglangLinks:
    """What SGLang's kernels take of a tree."""

    def __init__(self, case: Case) -> None:
        rows, requests = case.rows, case.requests
        first, sibling = [-1] * rows, [-1] * rows
        for row in range(rows - 1, 0, -1):
            parent = case.parents_of_tree[row]
            sibling[row], first[parent] = first[parent], row
        self.first, self.sibling = (
            torch.tensor(one, device=DEVICE, dtype=torch.int64).repeat(requests, 1).contiguous()
            for one in (first, sibling)
        )
        self.index = torch.arange(requests * rows, device=DEVICE).view(requests, rows)
        self.predicts = torch.zeros(requests * rows, dtype=torch.int32, device=DEVICE)
        self.accepted = torch.full((requests, case.deepest + 1), -1, dtype=torch.int32, device=DEVICE)
        self.count = torch.zeros(requests, dtype=torch.int32, device=DEVICE)

    def greedy(self, case: Case, copy: int) -> torch.Tensor:
        import sgl_kernel

        chosen = case.logits[copy].argmax(dim=-1).view(case.requests, case.rows)
        sgl_kernel.verify_tree_greedy(
            self.predicts, self.accepted, self.count, case.drafts[copy].view(chosen.shape),
            self.index, self.first, self.sibling, chosen,
        )  # fmt: skip
        return self.count

    def sampled(self, case: Case, copy: int, top_p: float) -> torch.Tensor:
        import sgl_kernel

        shape = (case.requests, case.rows, case.vocabulary)
        warm = case.temperature.repeat_interleave(case.rows)[:, None]
        target = torch.softmax(case.logits[copy] / warm, dim=-1)
        every = torch.full((case.requests * case.rows,), case.vocabulary, dtype=torch.int32, device=DEVICE)
        target = sgl_kernel.top_k_renorm_prob(target, every)
        target = sgl_kernel.top_p_renorm_prob(target, torch.full(every.shape, top_p, device=DEVICE))
        target = target.to(torch.float32).reshape(shape)
        coins = torch.rand(case.requests, case.rows, device=DEVICE)
        sgl_kernel.tree_speculative_sampling_target_only(
            self.predicts, self.accepted, self.count, case.drafts[copy].view(shape[:2]),
            self.index, self.first, self.sibling, coins, torch.rand(case.requests, device=DEVICE),
            target, torch.zeros_like(target), 1.0, 1.0, True,
        )  # fmt: skip
        return self.count


class Arms:
    def __init__(self, case: Case, mode: str) -> None:
        self.case, self.mode = case, mode
        self.given = [case.arguments(mode, copy) for copy in range(len(case.logits))]

    def ours(self, i: int) -> Any:
        verify = verify_greedy_tree if self.mode == "greedy" else verify_tree
        return verify(*self.given[i], width=self.case.rows)

    def sglang(self, i: int) -> Any:
        assert self.case.links is not None
        if self.mode == "greedy":
            return self.case.links.greedy(self.case, i)
        return self.case.links.sampled(self.case, i, TOP_P[self.mode])

    @property
    def calls(self) -> dict[str, Callable[[int], Any]]:
        return {"ours": self.ours} | ({"sglang": self.sglang} if HAS_SGLANG else {})

    def refused(self) -> str | None:
        """What is wrong with ours, None where the arms may be compared."""
        many = min(_CHECKED_REQUESTS, self.case.requests)
        few = [
            one.cpu() if isinstance(one, torch.Tensor) else one
            for one in self.case.arguments(self.mode, 0, many)
        ]
        reference = verify_greedy_tree_reference if self.mode == "greedy" else verify_tree_reference
        mine = self.ours(0)
        for name, want, got in zip(
            ("tokens", "counts", "paths"), reference(*few, width=self.case.rows), mine, strict=True
        ):
            if not torch.equal(want, got[:many].cpu()):
                return f"other {name} than the reference's"
        return self._refused_by_sglang(mine[1]) if HAS_SGLANG else None

    def _refused_by_sglang(self, counts: torch.Tensor) -> str | None:
        theirs = self.sglang(0) + 1
        if self.mode == "greedy":
            return None if torch.equal(counts, theirs.to(counts.dtype)) else "other counts than SGLang's"
        noise = (float(counts.float().var() + theirs.float().var()) / len(counts)) ** 0.5
        off = abs(float(counts.float().mean() - theirs.float().mean()))
        return None if off <= _SIGMAS * max(noise, 1e-9) else f"{off:.3f} tokens a request off SGLang's mean"


def measured(arms: Arms, repeats: int, calls: int) -> dict[str, Any]:
    """One warm round first, then rounds in turn."""
    refused = arms.refused()
    if refused is not None:
        return {"refused": refused}
    taken = taken_in_turn(arms.calls, repeats, len(arms.case.logits), calls)
    floor_us = arms.case.bytes / READ_BYTES_PER_S * 1e6
    found: dict[str, Any] = {
        "us": {name: summary(values) for name, values in taken.items()},
        "ours over one read": summary([mine / floor_us for mine in taken["ours"]]),
        "mean tokens": round(float(arms.ours(0)[1].float().mean()), 3),
    }
    if HAS_SGLANG:
        found["sglang's time by ours"] = summary(pairwise_ratios(taken["sglang"], taken["ours"]))
    return found


def every_case(is_quick: bool) -> list[tuple[int, int, str]]:
    """(rows of a request, vocabulary, dtype)."""
    rows, vocabularies = ((4, 7), (97,)) if is_quick else ((8, 16, 32), (128_256, 151_936))
    return list(itertools.product(rows, vocabularies, DTYPES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--max-s", type=float, default=55.0, help="no further case is begun after this")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    begun, figures, left_out = time.monotonic(), dict[str, Any](), list[str]()
    for rows, vocabulary, dtype in every_case(arguments.quick):
        name = f"{dtype}, vocabulary {vocabulary}, {rows} rows a request"
        if time.monotonic() - begun > arguments.max_s:
            left_out.append(name)
            continue
        case = Case(2 if arguments.quick else 64, rows, vocabulary, DTYPES[dtype], 2)
        for mode in TOP_P:
            found = measured(Arms(case, mode), arguments.repeats, arguments.calls)
            figures[f"{name}, {mode}"] = found
            times = {arm: value["median"] for arm, value in found.get("us", {}).items()}
            over = found.get("ours over one read", {}).get("median")
            print(name, mode, found.get("refused", times), over, flush=True)
        del case
        if IS_GPU:
            torch.cuda.empty_cache()
    device = torch.cuda.get_device_name() if IS_GPU else "cpu"
    result = {
        "provenance": {**provenance(), "accelerator": device, "sglang's arm": HAS_SGLANG},
        "figures": figures,
        "left out for time": left_out,
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
