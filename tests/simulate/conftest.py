"""A small server and loads made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specctl.policy.loader import shipped_policies
from specctl.simulate.engine_profile import EngineProfile, load_profile
from specctl.simulate.trace import Trace


@pytest.fixture(scope="session")
def h200() -> EngineProfile:
    return load_profile(
        next(path for path in shipped_policies("profiles") if path.stem == "h200-llama8b-vllm032")
    )


@pytest.fixture
def small(h200: EngineProfile) -> Callable[..., EngineProfile]:
    """The shipped profile with other limits."""

    def make(**limits: int) -> EngineProfile:
        scheduler = h200.scheduler.model_copy(update=limits)
        return EngineProfile.model_validate(
            {**h200.model_dump(), "scheduler": scheduler.model_dump(), "jitter_ratio": 0.0}
        )

    return make


@pytest.fixture
def bursty() -> Trace:
    """60 requests in bursts, of lengths from 1 on."""
    rng = np.random.default_rng(7)
    arrival_s = np.sort(rng.random(60) ** 2 * 4.0)
    return Trace(arrival_s - arrival_s[0], rng.integers(1, 900, 60), rng.integers(1, 120, 60), {})


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    lines = ["timestamp_s,input_tokens,output_tokens"]
    lines += [f"{0.05 * i:.2f},{50 + 7 * i},{20 + i}" for i in range(40)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    return path
