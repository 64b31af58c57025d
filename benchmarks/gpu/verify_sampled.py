"""Verification of sampled requests on a GPU: time against one read of the logits, and against vLLM's sampler.

    python -m benchmarks.gpu.verify_sampled --output FILE [--max-s 140]

Both arms go in by the same call, RejectionSampler._verify_in_chunks: vLLM's own, with apply_sampling_params
and its kernels, and specctl's in its place. Options lie in vLLM's own states, in the host's memory. (Where
steps have drafts vLLM 0.32.0 cuts with its Triton kernel; FlashInfer serves steps without drafts only.)
Each call is given other logits than the one before, together more than the cache holds; arms take turns.
Logits are a Zipf law of exponent 1.5, in any order: at T = 0.8 and top-p 0.95 some dozens of tokens are kept.
First each kind of case is checked: ours against the reference for some requests, and as many tokens as vLLM
on average. Where that fails there is no ratio.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from specctl_kernels.verify_rejection.reference import verify_rejection_reference

from benchmarks.gpu.device import device_provenance
from benchmarks.gpu.timing import taken_in_turn
from benchmarks.gpu.verify import READ_BYTES_PER_S
from testing.provenance import pairwise_ratios, summary

ROWS = (512, 1024, 2048, 256, 8)
VOCABULARIES = (151_936, 128_256, 32_000, 262_144)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
MODES = {
    "temperature": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
    "top-k and top-p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "min-p": {"temperature": 0.8, "min_p": 0.05},
}
DRAFTS = 7
ZIPF = 1.5
_ROTATED_BYTES = 384 * 2**20
_CALLS = 12
_CHECKED_REQUESTS = 3
_SIGMAS = 5.0
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"


@triton.jit
def _read_kernel(values_ptr, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0), tl.max(tl.load(values_ptr + at, mask=at < count, other=0), axis=0))


class Case:
    """Rows of requests with ``DRAFTS`` drafts each; a draft is a likely token 4 times of 5."""

    def __init__(self, rows: int, vocabulary: int, dtype: torch.dtype, zipf: float = ZIPF) -> None:
        self.rows, self.vocabulary, self.dtype, self.zipf = rows, vocabulary, dtype, zipf
        self.requests = rows // (DRAFTS + 1)
        self.bytes = rows * vocabulary * dtype.itemsize
        copies = min(max(2, -(-_ROTATED_BYTES // self.bytes)), 48) if IS_GPU else 2
        torch.manual_seed(rows + vocabulary)
        self.logits = [self._logits() for _ in range(copies)]
        self.drafts = [self._drafts(one) for one in self.logits]
        made = torch.arange(rows, device=DEVICE)
        self.starts_np = np.arange(self.requests + 1, dtype=np.int32) * (DRAFTS + 1)
        self.starts = torch.from_numpy(self.starts_np).to(DEVICE)
        self.slots_np = np.arange(self.requests)[::-1].copy()
        self.slots = torch.from_numpy(self.slots_np).to(DEVICE)
        self.slots_of_rows = self.slots.repeat_interleave(DRAFTS + 1)
        self.places = (made % (DRAFTS + 1)).to(torch.int32)
        self.positions = 1000 + self.places.long()

    def _logits(self) -> torch.Tensor:
        uniform = torch.rand(self.rows, self.vocabulary, device=DEVICE)
        return uniform.mul_(self.vocabulary).add_(1).log_().mul_(-self.zipf).add_(20.0).to(self.dtype)

    def _drafts(self, logits: torch.Tensor) -> torch.Tensor:
        drafts = logits.argmax(dim=1).roll(1)
        other = torch.randint(0, self.vocabulary, drafts.shape, device=DEVICE)
        return torch.where(torch.rand(self.rows, device=DEVICE) < 0.2, other, drafts).to(torch.int32)

    def reference(self, options: Iterable[torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and counts of the first requests and logits, by options of each slot."""
        requests = min(_CHECKED_REQUESTS, self.requests)
        rows = requests * (DRAFTS + 1)
        return verify_rejection_reference(
            self.logits[0][:rows].cpu(), self.drafts[0][:rows].cpu(), self.starts[: requests + 1].cpu(),
            *(None if one is None else one.cpu() for one in options), self.positions[:rows].cpu(),
            width=DRAFTS + 1, slots=self.slots[:requests].cpu(),
        )  # fmt: skip

    def read(self, i: int) -> torch.Tensor:
        words = self.logits[i].view(-1).view(torch.int32)
        programs = triton.cdiv(words.numel(), 4096)
        out = words.new_empty(programs)
        _read_kernel[(programs,)](words, out, words.numel(), BLOCK=4096)
        return out


class Arms:
    """vLLM's RejectionSampler for one mode, and ours in the place of its ``_verify_in_chunks``."""

    def __init__(self, case: Case, mode: dict[str, Any]) -> None:
        from specctl_vllm.compat import verification
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler, get_max_chunk_logits

        self.case, self.mode = case, mode
        self.rejection = RejectionSampler(
            _sampler(case, mode),
            SimpleNamespace(
                num_speculative_tokens=DRAFTS,
                enable_adaptive_verification=False,
                rejection_sample_method="standard",
            ),
            DEVICE,
        )
        self.limit = get_max_chunk_logits(case.vocabulary)
        self.batch = SimpleNamespace(
            num_reqs=case.requests,
            cu_num_logits=case.starts,
            cu_num_logits_np=case.starts_np,
            idx_mapping=case.slots,
            idx_mapping_np=case.slots_np,
            expanded_idx_mapping=case.slots_of_rows,
            expanded_local_pos=case.places,
            seq_lens_cpu_upper_bound=torch.full((case.requests,), 1100, dtype=torch.int32),
        )
        verification.scope.greedy = verification.scope.sampled = True
        self._engine = RejectionSampler._verify_in_chunks
        self._ours = verification.wrap_verify_in_chunks(self._engine)

    def ours(self, i: int) -> Any:
        return self._called(self._ours, i)

    def engine(self, i: int) -> Any:
        return self._called(self._engine, i)

    def _called(self, verify: Any, i: int) -> Any:
        case = self.case
        return verify(
            self.rejection, case.logits[i], self.batch, None, case.drafts[i], case.positions, self.limit, -1
        )

    def refused(self) -> str | None:
        """What is wrong with ours, None where both arms may be compared."""
        case, states = self.case, self.rejection.sampler.sampling_states
        by_slot = (states.temperature, states.top_k, states.top_p, states.min_p, states.seeds)
        wanted = case.reference(torch.from_numpy(one.np.copy()) for one in by_slot)
        tokens, counts = (one[: len(wanted[1])].cpu() for one in self.ours(0)[:2])
        if not (torch.equal(counts, wanted[1]) and torch.equal(tokens, wanted[0])):
            return f"other tokens than the reference: {tokens.tolist()}, {wanted[0].tolist()}"
        if not IS_GPU:
            return None
        numbers = [
            torch.cat([arm(i)[1] for i in range(len(case.logits))]).double()
            for arm in (self.ours, self.engine)
        ]
        apart = float((numbers[0].mean() - numbers[1].mean()).abs())
        spread = float(((numbers[0].var() + numbers[1].var()) / len(numbers[0])).sqrt())
        if len(numbers[0]) > 30 and apart > _SIGMAS * max(spread, 1e-3):
            return f"{float(numbers[0].mean())} tokens a request, vLLM {float(numbers[1].mean())}"
        return None


def _sampler(case: Case, mode: dict[str, Any]) -> Any:
    """vLLM's Sampler with its states of the mode, without what another request might need."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.sample.states import SamplingStates
    from vllm.v1.worker.gpu.sample.thinking_budget import ThinkingBudgetState

    if not IS_GPU:
        from vllm.v1.worker.gpu import buffer_utils

        buffer_utils.is_uva_available = lambda: False  # it asks whether the platform could
    sampler: Any = Sampler.__new__(Sampler)
    sampler.logprobs_mode, sampler.compute_nans, sampler.use_fp64_gumbel = "raw_logprobs", False, False
    sampler.return_sampling_mask, sampler.logits_processors = False, []
    sampler.sampling_states = SamplingStates(case.requests, case.vocabulary)
    requests = SimpleNamespace(max_num_reqs=case.requests, device=DEVICE)
    sampler.thinking_budget_state = ThinkingBudgetState(requests, None)
    sampler.needs_logits_processing = np.array(
        [
            sampler.sampling_states.add_request(slot, SamplingParams(seed=1000 + slot, **mode))
            for slot in range(case.requests)
        ]
    )
    sampler.sampling_states.apply_staged_writes()
    return sampler


def peak_bytes(call: Callable[[int], Any]) -> int:
    """Device memory that a call takes beside its inputs, its results included."""
    if not IS_GPU:
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call(0)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measured(case: Case, mode: dict[str, Any], repeats: int, has_engine: bool) -> dict[str, Any]:
    made = Arms(case, mode)
    refused = made.refused()
    if refused is not None:
        return {"refused": refused}
    arms: dict[str, Callable[[int], Any]] = {"ours": made.ours, "one read": case.read}
    if has_engine:
        arms["engine"] = made.engine
    taken = taken_in_turn(arms, repeats, len(case.logits), _CALLS)
    nominal_us = case.bytes / READ_BYTES_PER_S * 1e6
    found: dict[str, Any] = {
        "us": {name: summary(values) for name, values in taken.items()},
        "ours over one read at 4.3 TB/s": summary([mine / nominal_us for mine in taken["ours"]]),
        "ours over one read as measured": summary(pairwise_ratios(taken["ours"], taken["one read"])),
        "extra bytes a request": {
            name: peak_bytes(arm) // case.requests for name, arm in arms.items() if name != "one read"
        },
        "tokens a request": round(mean(made.ours(0)[1].double().tolist()), 3),
    }
    if has_engine:
        found["ours against the engine's"] = summary(pairwise_ratios(taken["engine"], taken["ours"]))
    return found


def shapes(arguments: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """The first dtype, largest need first: a run that ends early has measured what is asked for most."""
    rows, vocabularies, dtypes = ((16, 8), (4096, 9001), ("fp32",)) if arguments.quick else (
        arguments.rows, arguments.vocabularies, arguments.dtypes
    )  # fmt: skip
    for dtype, row, vocabulary in itertools.product(dtypes, rows, vocabularies):
        yield dtype, vocabulary, row


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    started_s = time.monotonic()
    figures: dict[str, Any] = {}
    left_out: list[str] = []
    for dtype, vocabulary, rows in shapes(arguments):
        name = f"{dtype}, vocabulary {vocabulary}, {rows} rows"
        if time.monotonic() - started_s > arguments.max_s:
            left_out.append(name)
            continue
        case = Case(rows, vocabulary, DTYPES[dtype])
        for mode in arguments.modes:
            found = measured(case, MODES[mode], arguments.repeats, IS_GPU)
            figures[f"{name}, {mode}"] = found
            print(f"{name}, {mode}: {line(found)}", flush=True)
        del case
        if IS_GPU:
            torch.cuda.empty_cache()
    return {"figures": figures, "left out for time": left_out, "seconds": time.monotonic() - started_s}


def line(found: dict[str, Any]) -> str:
    if "refused" in found:
        return f"REFUSED, {found['refused']}"
    told = [f"{arm} {value['median']:.1f} us" for arm, value in found["us"].items()]
    for name in ("ours over one read at 4.3 TB/s", "ours against the engine's"):
        if name in found:
            told.append(f"{name} {found[name]['median']:.2f}")
    return ", ".join([*told, f"bytes {found['extra bytes a request']}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--vocabularies", type=int, nargs="*", default=VOCABULARIES)
    parser.add_argument("--dtypes", nargs="*", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--modes", nargs="*", choices=list(MODES), default=list(MODES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-s", type=float, default=140.0, help="no new shape is begun after")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, under TRITON_INTERPRET=1 too")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    if not IS_GPU and not arguments.quick:
        raise SystemExit("benchmarks.gpu.verify_sampled needs a GPU")
    found = {"provenance": device_provenance(), **run(arguments)}
    arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if any("refused" in one for one in found["figures"].values()):
        raise SystemExit("a case was refused: ours is wrong there")


if __name__ == "__main__":
    main()
