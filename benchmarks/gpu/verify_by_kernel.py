"""Verification without an engine beside it: time against one read of the logits, and kernel by kernel.

    python -m benchmarks.gpu.verify_by_kernel [--zipf 1.0] [--by-kernel] [--output FILE]

The batches, the clock and the check are those of benchmarks.gpu.verify_sampled. Options lie in pinned memory
of the host, by slot, as vLLM keeps them; where any is asked for all of top-k, top-p and min-p are given.
Each line: us on the device (median of calls, other logits each; then the least and the most of the repeats),
the same of a kernel that only reads, and their ratio. Each case is checked before it is timed: three requests
have the reference's tokens. ``--by-kernel``: by torch's profiler the median of
each kernel, where one that begins early counts its wait. On a CPU, with TRITON_INTERPRET=1 and small shapes,
the times say nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from specctl_kernels.verify_greedy import verify_greedy
from specctl_kernels.verify_greedy.reference import verify_greedy_reference
from specctl_kernels.verify_rejection import verify_rejection
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.device import device_provenance
from benchmarks.gpu.timing import taken_in_turn
from benchmarks.gpu.verify import READ_BYTES_PER_S
from benchmarks.gpu.verify_sampled import DRAFTS, DTYPES, IS_GPU, MODES, ZIPF, Case
from testing.provenance import pairwise_ratios, summary

_CALLS = 16
_PROFILED_CALLS = 8
_SEED = 1000
GREEDY = "greedy"
ALL_MODES = {**MODES, "top-k": {"temperature": 0.8, "top_k": 50}}


def options_of(case: Case, mode: str) -> tuple[torch.Tensor | None, ...]:
    """Temperature, top_k, top_p, min_p and seeds of every request."""
    asked = ALL_MODES[mode]
    off = {"temperature": 1.0, "top_k": case.vocabulary, "top_p": 1.0, "min_p": 0.0}

    def each(name: str, dtype: torch.dtype) -> torch.Tensor | None:
        if len(asked) == 1 and name != "temperature":
            return None
        return on_host(torch.full((case.requests,), asked.get(name, off[name]), dtype=dtype))

    cuts = each("top_k", torch.int32), each("top_p", torch.float32), each("min_p", torch.float32)
    return each("temperature", torch.float32), *cuts, on_host(torch.arange(case.requests) + _SEED)


def on_host(values: torch.Tensor) -> torch.Tensor:
    return values.pin_memory() if IS_GPU else values


def call_of(case: Case, mode: str) -> Callable[[int], Any]:
    if mode == GREEDY:
        return lambda i: verify_greedy(case.logits[i], case.drafts[i], case.starts, width=DRAFTS + 1)
    options: Any = options_of(case, mode)
    return lambda i: verify_rejection(
        case.logits[i], case.drafts[i], case.starts, *options, case.positions,
        width=DRAFTS + 1, slots=case.slots,
    )  # fmt: skip


def is_right(case: Case, mode: str) -> bool:
    if mode == GREEDY:
        given = [one.cpu() for one in (case.logits[0], case.drafts[0], case.starts)]
        wanted = verify_greedy_reference(*given, width=DRAFTS + 1)
    else:
        wanted = case.reference(options_of(case, mode))
    found = [one[: len(wanted[1])].cpu() for one in call_of(case, mode)(0)]
    return all(torch.equal(mine, other) for mine, other in zip(found, wanted, strict=True))


def by_kernel(call: Callable[[int], Any], inputs: int) -> dict[str, float]:
    """us, medians."""
    if not IS_GPU:
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as taken:
        for number in range(_PROFILED_CALLS):
            call(number % inputs)
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in taken.events() or ():
        times.setdefault(event.name, []).append(event.device_time)
    return {name: round(sorted(us)[len(us) // 2], 1) for name, us in times.items() if max(us) > 0}


def measured(case: Case, mode: str, repeats: int, is_by_kernel: bool) -> dict[str, Any]:
    if not is_right(case, mode):
        return {"refused": "other tokens than the reference"}
    call = call_of(case, mode)
    taken = taken_in_turn({"ours": call, "one read": case.read}, repeats, len(case.logits), _CALLS)
    nominal_us = case.bytes / READ_BYTES_PER_S * 1e6
    found: dict[str, Any] = {
        "us": {name: summary(values) for name, values in taken.items()},
        "ours over one read as measured": summary(pairwise_ratios(taken["ours"], taken["one read"])),
        "ours over one read at 4.3 TB/s": summary([us / nominal_us for us in taken["ours"]]),
    }
    if is_by_kernel:
        found["by kernel"] = by_kernel(call, len(case.logits))
    return found


def line(found: dict[str, Any]) -> str:
    if "refused" in found:
        return f"REFUSED: {found['refused']}"
    ours, read = found["us"]["ours"], found["us"]["one read"]["median"]
    told = f"{ours['median']:.1f} us ({ours['min']:.1f} to {ours['max']:.1f}), one read {read:.1f}"
    return f"{told}: {ours['median'] / read:.2f} {found.get('by kernel', '')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--vocabularies", type=int, nargs="*", default=[151_936])
    parser.add_argument("--dtypes", nargs="*", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--modes", nargs="*", choices=[*ALL_MODES, GREEDY], default=[*MODES, GREEDY])
    parser.add_argument("--zipf", type=float, default=ZIPF)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--by-kernel", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    print(device_provenance(), flush=True)
    figures: dict[str, Any] = {}
    for dtype in arguments.dtypes:
        for rows in arguments.rows:
            for vocabulary in arguments.vocabularies:
                case = Case(rows, vocabulary, DTYPES[dtype], arguments.zipf)
                for mode in arguments.modes:
                    name = f"{dtype}, vocabulary {vocabulary}, {rows} rows, {mode}"
                    figures[name] = measured(case, mode, arguments.repeats, arguments.by_kernel)
                    print(f"{name}: {line(figures[name])}", flush=True)
    if arguments.output:
        found = {"provenance": device_provenance(), "zipf": arguments.zipf, "figures": figures}
        arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
