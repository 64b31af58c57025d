"""Block verification on a GPU: time against verify_rejection, vLLM's block mode and one read of the logits.

    python -m benchmarks.gpu.verify_block --output FILE [--quick]

All arms get the same drafts, sampled from given draft logits. vLLM's arm is what its RejectionSampler calls
with ``rejection_sample_method`` "block": a float32 copy of the logits, temperature and top-p applied to it,
then its kernels. Each call is given other logits than the one before, together more than the cache holds;
arms take turns. First every case is checked: ours against the reference for some requests, and as many
tokens as vLLM on average, no fewer than token by token. Where that fails there is no figure. Logits are a
Zipf law of exponent 1.5, in any order; the draft's are the target's with noise. ``--quick``: tiny shapes,
for a machine without a GPU under TRITON_INTERPRET=1, and without vLLM's arm, whose kernels need one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from specctl_kernels.verify_block import verify_block
from specctl_kernels.verify_block.reference import verify_block_reference
from specctl_kernels.verify_rejection import verify_rejection

from benchmarks.gpu.timing import taken_in_turn
from benchmarks.gpu.verify import READ_BYTES_PER_S
from testing.provenance import pairwise_ratios, provenance, summary

ROWS = (512, 1024, 2048)
VOCABULARY = 128_256
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
TOP_P = {"temperature": None, "top-p 0.95": 0.95}
TEMPERATURE = 0.8
DRAFTS = 7
NOISE = 0.7
ZIPF = 1.5
_ROTATED_BYTES = 384 * 2**20
_CALLS = 12
_CHECKED_REQUESTS = 2
_SIGMAS = 5.0
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"


class Case:
    """Rows of requests with ``DRAFTS`` sampled drafts each."""

    def __init__(self, rows: int, vocabulary: int, dtype: torch.dtype) -> None:
        self.rows, self.vocabulary, self.dtype = rows, vocabulary, dtype
        self.requests = rows // (DRAFTS + 1)
        self.bytes = (rows + self.requests * DRAFTS) * vocabulary * dtype.itemsize
        torch.manual_seed(rows + vocabulary)
        made = [self._inputs() for _ in range(max(2, -(-_ROTATED_BYTES // self.bytes)) if IS_GPU else 2)]
        self.logits, self.draft_logits, self.drafts = zip(*made, strict=True)
        self.starts = torch.arange(self.requests + 1, device=DEVICE, dtype=torch.int32) * (DRAFTS + 1)
        self.slots = torch.arange(self.requests, device=DEVICE, dtype=torch.int32)
        self.slots_of_rows = self.slots.repeat_interleave(DRAFTS + 1)
        self.places = (torch.arange(rows, device=DEVICE) % (DRAFTS + 1)).to(torch.int32)
        self.positions = 1000 + self.places.long()
        self.temperature = torch.full((self.requests,), TEMPERATURE, device=DEVICE)
        self.seeds = torch.arange(self.requests, device=DEVICE) * 7919

    def _inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = torch.rand(self.rows, self.vocabulary, device=DEVICE)
        logits = logits.mul_(self.vocabulary).add_(1).log_().mul_(-ZIPF).add_(20.0)
        draft_logits = logits.view(self.requests, DRAFTS + 1, -1)[:, :DRAFTS]
        draft_logits = draft_logits.add(torch.randn_like(draft_logits), alpha=NOISE).to(self.dtype)
        drafts = torch.zeros(self.requests, DRAFTS + 1, dtype=torch.int32, device=DEVICE)
        for one in range(DRAFTS):
            law = torch.softmax(draft_logits[:, one].float() / TEMPERATURE, dim=-1)
            drafts[:, one + 1] = torch.multinomial(law, 1)[:, 0]
        return logits.to(self.dtype), draft_logits.contiguous(), drafts.flatten()


class Arms:
    """The three ways to verify a case under one top-p."""

    def __init__(self, case: Case, top_p: float | None) -> None:
        self.case = case
        self.top_p = None if top_p is None else torch.full((case.requests,), top_p, device=DEVICE)
        self.top_p_of_rows = None if top_p is None else torch.full((case.rows,), top_p, device=DEVICE)

    def given(self, i: int) -> dict[str, Any]:
        case = self.case
        return {
            "logits": case.logits[i], "drafts": case.drafts[i], "starts": case.starts,
            "temperature": case.temperature, "top_k": None, "top_p": self.top_p, "min_p": None,
            "seeds": case.seeds, "positions": case.positions, "width": DRAFTS + 1,
            "draft_logits": case.draft_logits[i], "draft_slots": case.slots,
        }  # fmt: skip

    def block(self, i: int) -> Any:
        return verify_block(**self.given(i))

    def token_by_token(self, i: int) -> Any:
        return verify_rejection(**self.given(i))

    def engine(self, i: int) -> Any:
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
        from vllm.v1.worker.gpu.sample.gumbel import apply_temperature
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

        case = self.case
        logits = torch.empty_like(case.logits[i], dtype=torch.float32).copy_(case.logits[i])
        apply_temperature(logits, case.slots_of_rows, case.temperature)
        if self.top_p_of_rows is not None:
            logits = apply_top_k_top_p(logits, None, self.top_p_of_rows)
        return rejection_sample(
            logits, case.draft_logits[i], case.drafts[i], case.starts, case.positions, case.slots,
            case.slots_of_rows, case.places, case.temperature, case.seeds, DRAFTS,
            use_block_verification=True,
        )  # fmt: skip

    def all(self) -> dict[str, Callable[[int], Any]]:
        arms = {"block": self.block, "token by token": self.token_by_token}
        return arms | ({"engine": self.engine} if IS_GPU else {})


def check(arms: Arms) -> dict[str, float]:
    """Emitted tokens per request by arm; AssertionError where an arm is wrong."""
    requests = min(_CHECKED_REQUESTS, arms.case.requests)
    rows = requests * (DRAFTS + 1)
    some = arms.given(0) | {"uniforms": torch.rand(arms.case.rows, 2, dtype=torch.float64, device=DEVICE)}
    tokens, counts = verify_block(**some)
    by_row, by_request = ("logits", "drafts", "positions", "uniforms"), ("temperature", "top_p", "seeds")
    some |= {name: some[name][:rows] for name in by_row} | {"starts": some["starts"][: requests + 1]}
    some |= {name: some[name] if some[name] is None else some[name][:requests] for name in by_request}
    some |= {name: some[name][:requests] for name in ("draft_logits", "draft_slots")}
    want = verify_block_reference(
        **{k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in some.items()}
    )
    assert tokens[:requests].tolist() == want[0].tolist(), "other tokens than the reference"
    assert counts[:requests].tolist() == want[1].tolist(), "other numbers of tokens than the reference"
    inputs = range(len(arms.case.logits))
    seen = {name: torch.cat([arm(i)[1] for i in inputs]).double().cpu() for name, arm in arms.all().items()}
    error = {name: float(value.std() / len(value) ** 0.5) for name, value in seen.items()}
    means = {name: float(value.mean()) for name, value in seen.items()}
    room = _SIGMAS * max(error.values())
    assert means["block"] >= means["token by token"] - room, f"fewer tokens than token by token: {means}"
    if "engine" in means:
        assert abs(means["block"] - means["engine"]) <= room, f"not as many tokens as vLLM: {means}"
    return {name: round(value, 3) for name, value in means.items()}


def measured(case: Case, top_p: float | None, repeats: int) -> dict[str, Any]:
    arms = Arms(case, top_p)
    emitted = check(arms)
    calls = arms.all()
    taken = taken_in_turn(calls, repeats, len(case.logits), _CALLS)
    floor_us = case.bytes / READ_BYTES_PER_S * 1e6
    return {
        "emitted tokens per request": emitted,
        "us": {name: summary(values) for name, values in taken.items()},
        "block / one read": summary([mine / floor_us for mine in taken["block"]]),
        **{
            f"{name} / block": summary(pairwise_ratios(taken[name], taken["block"]))
            for name in calls
            if name != "block"
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    begin = time.monotonic()
    rows_of, vocabulary = ((16,), 300) if arguments.quick else (ROWS, VOCABULARY)
    figures: dict[str, Any] = {}
    for (name, dtype), rows in itertools.product(DTYPES.items(), rows_of):
        case = Case(rows, vocabulary, dtype)
        for mode, top_p in TOP_P.items():
            found = measured(case, top_p, 1 if arguments.quick else arguments.repeats)
            figures[f"{name}, vocabulary {vocabulary}, {rows} rows, {mode}"] = found
            print(name, rows, mode, {arm: one["median"] for arm, one in found["us"].items()}, flush=True)
        del case
        if IS_GPU:
            torch.cuda.empty_cache()
    gpu = torch.cuda.get_device_name() if IS_GPU else None
    ratios = [one["engine / block"]["median"] for one in figures.values() if "engine / block" in one]
    told = {
        "provenance": provenance() | {"gpu": gpu},
        "taken_s": round(time.monotonic() - begin, 1),
        "engine / block, mean of all": round(mean(ratios), 3) if ratios else None,
        "figures": figures,
    }
    arguments.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
