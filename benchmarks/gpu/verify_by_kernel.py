"""Our verify kernels on a GPU: time against one read of the logits and against vLLM's, and kernel by kernel.

    python -m benchmarks.gpu.verify_by_kernel [--modes greedy top-p block] [--by-kernel] [--output FILE]

Each line: us on the device (median of calls, other logits each; then the least and the most of the repeats),
the same of a kernel that only reads, and their ratio. Arms take turns. vLLM's is what its RejectionSampler
calls. Logits are a Zipf law, in any order: with an exponent of 1.5 some dozens of tokens are kept at T = 0.8
and top-p 0.95. Each case is checked before it is timed: three requests have the reference's tokens, and as
many tokens are emitted as by vLLM on average. ``--by-kernel``: by torch's profiler the median of each kernel,
where one that begins early counts its wait. On a CPU, with TRITON_INTERPRET=1 and small shapes, the times say
nothing.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.device import READ_BYTES_PER_S, device_provenance, taken_in_turn
from benchmarks.gpu.verify_cases import DTYPES, IS_GPU, MODES, ZIPF, Arms, Case
from testing.provenance import pairwise_ratios, summary, write_report

_CALLS = 16
_PROFILED_CALLS = 8


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


def measured(case: Case, mode: str, repeats: int, is_by_kernel: bool) -> dict[str, Any]:
    made = Arms(case, mode)
    why = made.refused()
    if why is not None:
        return {"refused": why}
    arms = made.all()
    taken = taken_in_turn(arms, repeats, len(case.logits), _CALLS)
    nominal_us = case.bytes / READ_BYTES_PER_S * 1e6
    found: dict[str, Any] = {
        "us": {name: summary(values) for name, values in taken.items()},
        "ours over one read as measured": summary(pairwise_ratios(taken["ours"], taken["one read"])),
        "ours over one read at 4.3 TB/s": summary([us / nominal_us for us in taken["ours"]]),
        "extra bytes a request": {
            name: peak_bytes(arm) // case.requests for name, arm in arms.items() if name != "one read"
        },
    }
    if "engine" in taken:
        found["engine / ours"] = summary(pairwise_ratios(taken["engine"], taken["ours"]))
    if is_by_kernel:
        found["by kernel"] = by_kernel(made.ours, len(case.logits))
    return found


def line(found: dict[str, Any]) -> str:
    if "refused" in found:
        return f"REFUSED: {found['refused']}"
    ours, read = found["us"]["ours"], found["us"]["one read"]["median"]
    timings = f"{ours['median']:.1f} us ({ours['min']:.1f} to {ours['max']:.1f}), one read {read:.1f}"
    engine = f", engine / ours {found['engine / ours']['median']:.2f}" if "engine / ours" in found else ""
    return f"{timings}: {ours['median'] / read:.2f}{engine} {found.get('by kernel', '')}"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--vocabularies", type=int, nargs="*", default=[151_936])
    parser.add_argument("--dtypes", nargs="*", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--modes", nargs="*", choices=list(MODES), default=list(MODES))
    parser.add_argument("--zipf", type=float, default=ZIPF)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--by-kernel", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(words)
    figures: dict[str, Any] = {}
    for dtype, rows, vocabulary in itertools.product(given.dtypes, given.rows, given.vocabularies):
        case = Case(rows, vocabulary, DTYPES[dtype], given.zipf)
        for mode in given.modes:
            name = f"{dtype}, vocabulary {vocabulary}, {rows} rows, {mode}"
            figures[name] = measured(case, mode, given.repeats, given.by_kernel)
            print(f"{name}: {line(figures[name])}", flush=True)
        del case
    if given.output:
        write_report({"zipf": given.zipf, "figures": figures}, given.output, device_provenance())
    return int(any("refused" in one for one in figures.values()))


if __name__ == "__main__":
    raise SystemExit(main())
