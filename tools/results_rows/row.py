"""A row of ``docs/results.md``: claim, figure, hardware, command, file; and what several rows share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

H200 = "1 H200"
H100 = "1 H100"
H100_X2 = "2 H100"
H200_X2 = "2 H200"
CPU = "2 CPU cores"


class Row(NamedTuple):
    claim: str
    hardware: str
    # Empty: the file alone names it, since the benchmark is not kept.
    command: str
    file: str
    figure: Callable[[], str]


def row(
    claim: str, hardware: str, command: str, file: str, figure: Callable[..., str], *of: Any, **how: Any
) -> Row:
    """``figure`` reads the file: ``figure(file, *of, **how)``."""
    return Row(claim, hardware, command, file, partial(figure, file, *of, **how))


COMPARE = "python -m benchmarks.gpu.compare"
SGLANG_COMPARE = "python -m benchmarks.gpu.sglang_compare"
VERIFY_BY_KERNEL = "python -m benchmarks.gpu.verify_by_kernel"

# Hardware, command and file of several rows.
SUFFIX = H200, f"{COMPARE} copying", "gpu-suffix-copying.json"
TENSOR_PARALLEL = H100_X2, f"{COMPARE} copying", "gpu-tensor-parallel.json"
