"""Kernels run here under Triton's interpreter, or on a GPU.

Triton reads TRITON_INTERPRET when it is imported, so these tests have a process of their own: ``make
test-kernels``, which ``tests/test_kernels.py`` starts too."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

_IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_CAN_RUN = _IS_INTERPRETED or torch.cuda.is_available()
collect_ignore_glob = [] if _CAN_RUN else ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def interpreted_in_time() -> Iterator[None]:
    if not _IS_INTERPRETED:
        yield
        return
    from support.quick_interpreter import quick_interpreter

    # A device overflows to infinity in silence.
    with quick_interpreter(), np.errstate(over="ignore"):
        yield
