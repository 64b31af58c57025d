"""The tests of the kernels, in the process that they need; what is compiled serves every later batch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
KERNELS = Path(__file__).parent / "kernels"


def run(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(KERNELS)], env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]


def test_kernels_under_the_interpreter() -> None:
    run({"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.gpu
def test_kernels_on_the_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    run({})


@pytest.mark.parametrize("name", ["greedy_tree_kernel", "tree_kernel"])
def test_no_address_of_the_engines_is_a_kernel_of_its_own(name: str) -> None:
    """Wherever in memory an engine keeps what it hands over."""
    from specctl_kernels.verify_tree import kernel

    parameters = getattr(kernel, name).params
    found = [parameter for parameter in parameters if parameter.name in kernel.OF_ENGINE]
    assert len(found) >= 3
    assert all(parameter.do_not_specialize_on_alignment for parameter in found)
    assert set(kernel.OF_ENGINE) <= {parameter.name for parameter in kernel.tree_kernel.params}
