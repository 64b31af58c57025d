"""SGLang's ``eagle_sample`` with our kernels against its own, on a GPU, in SGLang's environment.

    python -m benchmarks.gpu.sglang_verify --output FILE [--quick]

No server: batches by their attributes, with random trees as SPECCTL_SUFFIX drafts them, through the whole
function as the worker calls it. Both arms get the same logits and take turns.
Gate, first: greedy results are equal entry for entry, and sampled ones keep as many drafts (within 5 standard
errors over many calls). Where that fails there is no ratio. Times are those of the device, as in
benchmarks.gpu.verify_by_kernel. ``--quick``: tiny shapes, any device (on a CPU greedy only, with
TRITON_INTERPRET=1 and SGLANG_USE_CPU_ENGINE=1).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import torch
from specctl_sglang.compat import cpu_stand_ins

from benchmarks.gpu.device import device_provenance, taken_in_turn
from testing.provenance import pairwise_ratios, summary, write_report

sys.path.append(str(Path(__file__).parents[2] / "tests"))

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
SHAPES = [[(64, 4), (64, 8)], [(256, 4), (16, 9)], [(1, 9)]]
"""Requests and rows of each; of every group first the sampled batches, then the greedy ones."""
VOCABULARY = 151_936
KINDS: dict[str, dict[str, float]] = {
    "temperature": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
    "top-k and top-p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "greedy": {"top_k": 1},
}
_CALLS = 20
_REPEATS = 5
_GATE_CALLS = 40
_SIGMAS = 5.0


def engine() -> Any:
    """SGLang's function, for a server with one rank and its default thresholds."""
    if not IS_GPU:
        cpu_stand_ins.install()
    from sglang.srt import runtime_context
    from sglang.srt.layers import dp_attention
    from sglang.srt.speculative import eagle_utils

    spec = SimpleNamespace(
        speculative_use_rejection_sampling=False,
        speculative_accept_threshold_single=1.0,
        speculative_accept_threshold_acc=1.0,
        speculative_num_draft_tokens=9,
    )
    alone = SimpleNamespace(tp_group=SimpleNamespace(world_size=1))
    runtime_context.get_spec = eagle_utils.get_spec = lambda: spec
    runtime_context.get_parallel = lambda: alone
    dp_attention.is_dp_attention_enabled = lambda: False
    return eagle_utils.eagle_sample


class Case:
    """One batch; a row's first child is its likeliest token 2 times of 3."""

    def __init__(self, requests: int, rows: int, vocabulary: int, options: dict[str, float]) -> None:
        from support.sglang_batches import batch_of, sampling_of, trees

        torch.manual_seed(requests + rows)
        self.drafts = _moved(trees(requests, rows, vocabulary))
        zipf = -1.5 * torch.arange(1, vocabulary + 1, device=DEVICE).log()
        self.logits = torch.stack([zipf.roll(7 * row) for row in range(requests * rows)])
        self._draft_likely(requests, rows)
        sampling = _moved(sampling_of(requests, **{k: [v] * requests for k, v in options.items()}))
        self.batch = batch_of(sampling)
        self.batch.device, self.batch.seq_lens = (
            DEVICE,
            torch.ones(requests, dtype=torch.int64, device=DEVICE),
        )

    def _draft_likely(self, requests: int, rows: int) -> None:
        likely = self.logits.argmax(-1).view(requests, rows)
        first = self.drafts.retrieve_next_token
        is_likely = (first >= 0) & (torch.rand(first.shape, device=DEVICE) < 2 / 3)
        tokens = self.drafts.draft_token.view(requests, rows)
        request, row = is_likely.nonzero(as_tuple=True)
        tokens[request, first[request, row]] = likely[request, row]

    def given(self) -> tuple[Any, Any, Any]:
        return self.drafts, self.batch, SimpleNamespace(next_token_logits=self.logits)


def _moved(one: Any) -> Any:
    tensors = {k: v.to(DEVICE) for k, v in vars(one).items() if isinstance(v, torch.Tensor)}
    return type(one)(**(vars(one) | tensors))


def refused(arms: dict[str, Any], case: Case, is_greedy: bool) -> str | None:
    """Why the arms may not be compared."""
    if is_greedy:
        ours, theirs = (arm(*case.given()) for arm in arms.values())
        same = all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
        return None if same else "greedy results differ"
    kept = {
        name: [float(arm(*case.given())[1].float().mean()) for _ in range(_GATE_CALLS)]
        for name, arm in arms.items()
    }
    error = sum(stdev(values) ** 2 / len(values) for values in kept.values()) ** 0.5
    apart = abs(mean(kept["specctl"]) - mean(kept["engine"]))
    return None if apart <= _SIGMAS * error else f"emitted { ({k: mean(v) for k, v in kept.items()}) }"


def compared(arms: dict[str, Any], case: Case, is_greedy: bool) -> dict[str, Any]:
    why = refused(arms, case, is_greedy)
    if why is not None:
        return {"refused": why}
    calls = {name: lambda _, arm=arm: arm(*case.given()) for name, arm in arms.items()}
    times = taken_in_turn(calls, _REPEATS, 1, _CALLS)
    summaries = {f"{name}, us on the device": summary(values) for name, values in times.items()}
    return summaries | {"engine / specctl": summary(pairwise_ratios(times["engine"], times["specctl"]))}


def cases(is_quick: bool) -> Iterator[tuple[int, int, str]]:
    """Requests, rows of each, kind: in the order of what matters."""
    for shapes in [[(2, 3)]] if is_quick else SHAPES:
        for kind in KINDS:
            # SGLang does not sample drafts on a CPU.
            if kind == "greedy" or IS_GPU:
                yield from ((requests, rows, kind) for requests, rows in shapes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    original = engine()
    from specctl_sglang.compat import verification, verified_batches

    arms = {
        "specctl": lambda *given: verification._sampled_by_ours(original, *given),
        "engine": original,
    }
    vocabulary = 50 if arguments.quick else VOCABULARY
    figures: dict[str, Any] = {}
    for requests, rows, kind in cases(arguments.quick):
        row = compared(arms, Case(requests, rows, vocabulary, KINDS[kind]), kind == "greedy")
        figures[f"{kind}, {requests} requests of {rows} rows"] = row
        print(kind, requests, rows, row, flush=True)
    write_report({"figures": figures}, arguments.output, device_provenance())
    counts = verified_batches.snapshot()
    if set(counts) != {"batches_verified_by_specctl"}:
        raise SystemExit(f"not every batch was ours: {counts}")


if __name__ == "__main__":
    main()
