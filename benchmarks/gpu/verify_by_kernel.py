"""Where the time of a verification goes, kernel by kernel, and what other launch options would make of it.

    python -m benchmarks.gpu.verify_by_kernel [--zipf 1.0] [--set PIECE=2048] [--warps search_kernel=16]

No engine beside it: what benchmarks.gpu.verify_sampled compares with vLLM is looked at here alone, on the
same batches and by the same clock. ``--set``: constants of verify_rejection's launch.py; ``--warps``: of a
kernel by its name there. Each line: us on the device (median of some calls, other logits each), over one read
at 4.3 TB/s, then by torch's profiler the median of each kernel, where one that begins early counts its wait.
Where three requests' tokens are not the reference's, the line says so. On a CPU, with TRITON_INTERPRET=1 and
small shapes, the times say nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from specctl_kernels.verify_greedy import verify_greedy
from specctl_kernels.verify_rejection import launch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.device import device_provenance
from benchmarks.gpu.timing import times_us
from benchmarks.gpu.verify import READ_BYTES_PER_S
from benchmarks.gpu.verify_sampled import DEVICE, DRAFTS, DTYPES, IS_GPU, MODES, ZIPF, Case

_CALLS = 16
_PROFILED_CALLS = 8
_SEED = 1000
GREEDY = "greedy"


class _Tuned:
    """A kernel with other launch options."""

    def __init__(self, kernel: Any, **options: int) -> None:
        self._kernel, self._options = kernel, options

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        launched = self._kernel[grid]
        return lambda *values, **named: launched(*values, **{**named, **self._options})


def options_of(case: Case, mode: str) -> tuple[torch.Tensor | None, ...]:
    """Temperature, top_k, top_p, min_p and seeds of every request."""
    asked = MODES[mode]

    def each(name: str, dtype: torch.dtype) -> torch.Tensor | None:
        value = asked.get(name)
        return None if value is None else torch.full((case.requests,), value, dtype=dtype, device=DEVICE)

    cuts = each("top_k", torch.int32), each("top_p", torch.float32), each("min_p", torch.float32)
    return each("temperature", torch.float32), *cuts, torch.arange(case.requests, device=DEVICE) + _SEED


def call_of(case: Case, mode: str) -> Callable[[int], Any]:
    if mode == GREEDY:
        return lambda i: verify_greedy(case.logits[i], case.drafts[i], case.starts, width=DRAFTS + 1)
    options: Any = options_of(case, mode)
    return lambda i: launch.verify_rejection(
        case.logits[i], case.drafts[i], case.starts, *options, case.positions,
        width=DRAFTS + 1, slots=case.slots,
    )  # fmt: skip


def is_right(case: Case, mode: str) -> bool:
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


def line(case: Case, mode: str) -> str:
    call = call_of(case, mode)
    us = times_us(call, len(case.logits), _CALLS)
    told = f"{us:.1f} us, {us / (case.bytes / READ_BYTES_PER_S * 1e6):.2f} of one read"
    right = "" if mode == GREEDY or is_right(case, mode) else ", OTHER TOKENS than the reference"
    return f"{told}, {by_kernel(call, len(case.logits))}{right}"


def pair(text: str) -> tuple[str, int]:
    name, value = text.split("=")
    return name, int(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--vocabularies", type=int, nargs="*", default=[151_936])
    parser.add_argument("--dtypes", nargs="*", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--modes", nargs="*", choices=[*MODES, GREEDY], default=[*MODES, GREEDY])
    parser.add_argument("--zipf", type=float, default=ZIPF)
    parser.add_argument("--set", type=pair, nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--warps", type=pair, nargs="*", default=[], metavar="KERNEL=NUMBER")
    arguments = parser.parse_args()
    for name, value in arguments.set:
        getattr(launch, name)  # an AttributeError for a name that there is none of
        setattr(launch, name, value)
    for name, warps in arguments.warps:
        setattr(launch, name, _Tuned(getattr(launch, name), num_warps=warps))
    print(device_provenance(), flush=True)
    for dtype in arguments.dtypes:
        for rows in arguments.rows:
            for vocabulary in arguments.vocabularies:
                case = Case(rows, vocabulary, DTYPES[dtype], arguments.zipf)
                for mode in arguments.modes:
                    print(f"{dtype}, {rows} rows of {vocabulary}, {mode}: {line(case, mode)}", flush=True)


if __name__ == "__main__":
    main()
