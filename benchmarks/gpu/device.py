"""Which GPU a figure comes from, and times of short calls on it, several arms in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

from testing.provenance import provenance

__all__ = ["READ_BYTES_PER_S", "device_provenance", "taken_in_turn"]

READ_BYTES_PER_S = 4.3e12
"""What an H200's memory gives to a copy, counting both ways."""


def device_provenance() -> dict[str, Any]:
    """Asks for the GPU when it is called, not when it is imported: a process that starts an engine must not
    have done so before."""
    if not torch.cuda.is_available():
        return provenance()
    import triton

    return provenance() | {"device": torch.cuda.get_device_name(), "triton": triton.__version__}


def taken_in_turn(
    arms: Mapping[str, Callable[[int], Any]], repeats: int, inputs: int, calls: int
) -> dict[str, list[float]]:
    """Microseconds of each repeat, by arm. One round before them warms up."""
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(repeats + 1):
        for name in arms if repeat % 2 else reversed(list(arms)):
            taken[name].append(_us(arms[name], inputs, calls))
    return {name: values[1:] for name, values in taken.items()}


def _us(call: Callable[[int], Any], inputs: int, calls: int) -> float:
    """Median of ``calls`` calls on the device, inputs in turn; without a GPU one call by the host's clock."""
    if not torch.cuda.is_available():
        started_s = time.perf_counter()
        call(0)
        return (time.perf_counter() - started_s) * 1e6
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * calls)]
    torch.cuda._sleep(20_000_000)  # the host gets ahead: no launch is waited for
    for number in range(calls):
        events[2 * number].record()
        call(number % inputs)
        events[2 * number + 1].record()
    torch.cuda.synchronize()
    pairs = zip(events[::2], events[1::2], strict=True)
    return 1000 * median(first.elapsed_time(second) for first, second in pairs)
