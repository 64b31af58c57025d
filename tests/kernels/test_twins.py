"""Runs the twins' tests in a process of their own: Triton reads TRITON_INTERPRET when it is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
TWINS = sorted(Path(__file__).parent.glob("*_twin.py"))


def run(twin: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(twin)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.parametrize("twin", TWINS, ids=lambda path: path.stem)
def test_twins_under_the_interpreter(twin: Path) -> None:
    run(twin, {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.gpu
@pytest.mark.parametrize("twin", TWINS, ids=lambda path: path.stem)
def test_twins_on_the_gpu(twin: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    run(twin, {})
