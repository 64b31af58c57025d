"""Batches of drafts to verify, and what is timed: our kernels, vLLM's, and one read of the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from specctl_kernels.row_law.given import Sampling
from specctl_kernels.verify_block import verify_block
from specctl_kernels.verify_block.reference import verify_block_reference
from specctl_kernels.verify_greedy import verify_greedy
from specctl_kernels.verify_greedy.reference import verify_greedy_reference
from specctl_kernels.verify_rejection import verify_rejection
from specctl_kernels.verify_rejection.reference import verify_rejection_reference

__all__ = ["DEVICE", "DRAFTS", "DTYPES", "IS_GPU", "MODES", "ZIPF", "Arms", "Case"]

GREEDY, BLOCK = "greedy", "block"
MODES: dict[str, dict[str, float]] = {
    GREEDY: {},
    "temperature": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
    "top-k": {"temperature": 0.8, "top_k": 50},
    "min-p": {"temperature": 0.8, "min_p": 0.05},
    "top-k and top-p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    BLOCK: {"temperature": 0.8, "top_p": 0.95},
}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
DRAFTS = 7
WIDTH = DRAFTS + 1
ZIPF = 1.5
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
_ROTATED_BYTES = 384 * 2**20
_SEED = 1000
_NOISE = 0.7
_CHECKED_REQUESTS = 3
_SIGMAS = 5.0
_MANY = 30


@triton.jit
def _read_kernel(values_ptr, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0), tl.max(tl.load(values_ptr + at, mask=at < count, other=0), axis=0))


class Case:
    """Rows of requests with ``DRAFTS`` drafts each; a draft is a likely token 4 times of 5. ``logits`` take
    more than the cache holds: each call gets other ones. Slots are in the opposite order of requests."""

    def __init__(self, rows: int, vocabulary: int, dtype: torch.dtype, zipf: float = ZIPF) -> None:
        self.rows, self.vocabulary, self.dtype, self.zipf = rows, vocabulary, dtype, zipf
        self.requests = rows // WIDTH
        self.bytes = rows * vocabulary * dtype.itemsize
        copies = min(max(2, -(-_ROTATED_BYTES // self.bytes)), 48) if IS_GPU else 2
        torch.manual_seed(rows + vocabulary)
        self.logits = [self._logits() for _ in range(copies)]
        self.drafts = [self._drafts(one) for one in self.logits]
        made = torch.arange(rows, device=DEVICE)
        self.starts = torch.arange(self.requests + 1, device=DEVICE, dtype=torch.int32) * WIDTH
        self.slots = torch.arange(self.requests, device=DEVICE).flip(0)
        self.slots_of_rows = self.slots.repeat_interleave(WIDTH)
        self.places = (made % WIDTH).to(torch.int32)
        self.positions = 1000 + self.places.long()

    def _logits(self) -> torch.Tensor:
        uniform = torch.rand(self.rows, self.vocabulary, device=DEVICE)
        return uniform.mul_(self.vocabulary).add_(1).log_().mul_(-self.zipf).add_(20.0).to(self.dtype)

    def _drafts(self, logits: torch.Tensor) -> torch.Tensor:
        drafts = logits.argmax(dim=1).roll(1)
        other = torch.randint(0, self.vocabulary, drafts.shape, device=DEVICE)
        return torch.where(torch.rand(self.rows, device=DEVICE) < 0.2, other, drafts).to(torch.int32)

    def sampled_drafts(self, temperature: float) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """(draft logits, drafts) for each of ``logits``: the target's with noise, and samples of them."""
        made = []
        for one in self.logits:
            logits = one.view(self.requests, WIDTH, -1)[:, :DRAFTS].float()
            logits = logits.add(torch.randn_like(logits), alpha=_NOISE).to(self.dtype)
            drafts = torch.zeros(self.requests, WIDTH, dtype=torch.int32, device=DEVICE)
            for i in range(DRAFTS):
                law = torch.softmax(logits[:, i].float() / temperature, dim=-1)
                drafts[:, i + 1] = torch.multinomial(law, 1)[:, 0]
            made.append((logits.contiguous(), drafts.flatten()))
        draft_logits, drafts = zip(*made, strict=True)
        return list(draft_logits), list(drafts)

    def read(self, i: int) -> torch.Tensor:
        words = self.logits[i].view(-1).view(torch.int32)
        programs = triton.cdiv(words.numel(), 4096)
        out = words.new_empty(programs)
        _read_kernel[(programs,)](words, out, words.numel(), BLOCK=4096)
        return out


class Arms:
    """A case under one mode. Where a cut is asked for all of top-k, top-p and min-p are given, by slot, in
    pinned memory of the host as vLLM keeps them."""

    def __init__(self, case: Case, mode: str) -> None:
        self.case, self.mode, self.asked = case, mode, MODES[mode]
        self.drafts, self.draft_logits = case.drafts, None
        if mode == BLOCK:
            self.draft_logits, self.drafts = case.sampled_drafts(self.asked["temperature"])
        off = {"temperature": 0.0, "top_k": case.vocabulary, "top_p": 1.0, "min_p": 0.0}
        has_cut = len(self.asked) > 1
        kinds = (torch.float32, torch.int32, torch.float32, torch.float32)
        options = [
            _on_host(torch.full((case.requests,), self.asked.get(name, value), dtype=kind))
            if has_cut or name == "temperature"
            else None
            for (name, value), kind in zip(off.items(), kinds, strict=True)
        ]
        self.sampling = Sampling(*options, _on_host(torch.arange(case.requests) + _SEED))

    def ours(self, i: int) -> Any:
        case = self.case
        if self.mode == GREEDY:
            return verify_greedy(case.logits[i], self.drafts[i], case.starts, width=WIDTH)
        verify = verify_block if self.mode == BLOCK else verify_rejection
        return verify(**self._given(i))

    def engine(self, i: int) -> Any:
        """What vLLM's RejectionSampler calls. It cuts with its Triton kernel where steps have drafts."""
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
        from vllm.v1.worker.gpu.sample.gumbel import apply_temperature
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

        case, logits = self.case, self.case.logits[i]
        temperature = torch.full((case.requests,), self.asked.get("temperature", 0.0), device=DEVICE)
        if self.mode != GREEDY:
            logits = torch.empty_like(logits, dtype=torch.float32).copy_(logits)
            apply_temperature(logits, case.slots_of_rows, temperature)
            rows = (case.rows,)
            cuts = [
                torch.full(rows, self.asked[name], device=DEVICE, dtype=dtype) if name in self.asked else None
                for name, dtype in (("top_k", torch.int32), ("top_p", torch.float32))
            ]
            if any(cut is not None for cut in cuts):
                logits = apply_top_k_top_p(logits, *cuts)
        seeds = torch.arange(case.requests, device=DEVICE) + _SEED
        return rejection_sample(
            logits, None if self.draft_logits is None else self.draft_logits[i], self.drafts[i], case.starts,
            case.positions, case.slots, case.slots_of_rows, case.places, temperature, seeds, DRAFTS,
            use_block_verification=self.mode == BLOCK,
        )  # fmt: skip

    def all(self) -> dict[str, Callable[[int], Any]]:
        """vLLM takes no min-p where it speculates."""
        arms = {"ours": self.ours, "one read": self.case.read}
        return arms | ({"engine": self.engine} if IS_GPU and "min_p" not in self.asked else {})

    def refused(self) -> str | None:
        """What is wrong with ours; None where times may be compared."""
        wanted = self._reference()
        found = [one[: len(wanted[1])].cpu() for one in self.ours(0)[:2]]
        if not all(torch.equal(mine, other) for mine, other in zip(found, wanted, strict=True)):
            return f"other tokens than the reference: {found[0].tolist()}, {wanted[0].tolist()}"
        if "engine" not in self.all():
            return None
        inputs = range(len(self.case.logits))
        counts = [torch.cat([arm(i)[1] for i in inputs]).double() for arm in (self.ours, self.engine)]
        apart = float((counts[0].mean() - counts[1].mean()).abs())
        spread = float(((counts[0].var() + counts[1].var()) / len(counts[0])).sqrt())
        if len(counts[0]) > _MANY and apart > _SIGMAS * max(spread, 1e-3):
            return f"{float(counts[0].mean())} tokens a request, vLLM {float(counts[1].mean())}"
        return None

    def _given(self, i: int) -> dict[str, Any]:
        case = self.case
        given = {
            "logits": case.logits[i], "drafts": self.drafts[i], "starts": case.starts,
            "sampling": self.sampling, "positions": case.positions, "width": WIDTH, "slots": case.slots,
            "not_finite": torch.zeros(1, dtype=torch.int64, device=DEVICE),
        }  # fmt: skip
        if self.draft_logits is not None:
            given |= {"draft_logits": self.draft_logits[i], "draft_slots": case.slots.to(torch.int32)}
        return given

    def _reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and counts of the first requests."""
        case = self.case
        requests = min(_CHECKED_REQUESTS, case.requests)
        cut = dict.fromkeys(("logits", "drafts", "positions"), requests * WIDTH)
        cut |= {"starts": requests + 1, "slots": requests}
        some: dict[str, Any] = {
            name: one[: cut.get(name, len(one))].cpu() if isinstance(one, torch.Tensor) else one
            for name, one in self._given(0).items()
        }
        some["sampling"] = Sampling(*(one if one is None else one.cpu() for one in self.sampling))
        if self.mode == GREEDY:
            return verify_greedy_reference(some["logits"], some["drafts"], some["starts"], width=WIDTH)
        if self.mode == BLOCK:
            some["draft_slots"] = some["draft_slots"][:requests]
            return verify_block_reference(**some)
        return verify_rejection_reference(**some)


def _on_host(values: torch.Tensor) -> torch.Tensor:
    return values.pin_memory() if IS_GPU else values
