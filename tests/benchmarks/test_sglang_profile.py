"""What a step is told to cost, from a trace as torch's profiler writes it."""

from typing import Any

import pytest

from benchmarks.gpu.sglang_profile import told_of


def span(category: str, name: str, begin: float, length: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": length}


STEPS = [span("user_annotation", "step[VERIFY bs=8]", at, 50.0) for at in (0.0, 100.0)]


def test_time_on_the_device_is_told_by_step_with_its_gaps() -> None:
    told = told_of(
        [
            *STEPS,
            {"ph": "i", "name": "an instant", "ts": 0.0},
            span("kernel", "gemm", 10.0, 40.0),
            span("kernel", "other", 20.0, 40.0),  # beside it, on another stream
            span("gpu_memcpy", "copy", 65.0, 5.0),
            span("kernel", "gemm", 130.0, 80.0),
            span("cuda_runtime", "cudaLaunchKernel", 0.0, 8.0),
            span("cuda_runtime", "cudaEventSynchronize", 60.0, 40.0),
            span("cuda_runtime", "cudaLaunchKernel", 120.0, 6.0),
        ]
    )
    assert told["steps"] == 2
    assert told["us a step"] == 100.0
    assert told["idle us"] == (5.0 + 60.0) / 2
    assert told["of it in gaps over 20 us"] == 30.0
    assert told["launches"] == 2.0
    assert told["kernels, us a step and times"] == {
        "gemm": [60.0, 1.0],
        "other": [20.0, 0.5],
        "copy": [2.5, 0.5],
    }
    assert told["calls of CUDA, us a step and times"] == {
        "cudaEventSynchronize": [20.0, 0.5],
        "cudaLaunchKernel": [7.0, 1.0],
    }
    assert told["phases of the host, us a step"] == {"step[VERIFY bs=8]": 50.0}


def test_without_a_device_the_outermost_operations_count() -> None:
    told = told_of(
        [*STEPS, span("cpu_op", "aten::linear", 0.0, 30.0), span("cpu_op", "aten::addmm", 5.0, 20.0)]
    )
    assert told["kernels, us a step and times"] == {"aten::linear": [15.0, 0.5]}


def test_a_trace_without_a_step_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no step"):
        told_of([span("kernel", "gemm", 0.0, 1.0)])
