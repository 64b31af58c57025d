"""Kernels compile for an H100 where there is none: what the interpreter takes, a compiler may refuse."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton")
from support.device_drafts import WIDTH, OnDevice
from support.host_calls import ENGINES, KINDS, HostCalls, compile_calls, without_device

from specctl.draft.outcomes import Outcomes
from specctl.draft.suffix_index import SuffixIndexOptions


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_verification(engine: str, kind: str) -> None:
    assert compile_calls(engine, kind, 32).launches


def test_suffix_drafts() -> None:
    calls = HostCalls()
    device = OnDevice(SuffixIndexOptions(index_bytes=2**17), [[1, 2, 3, 1, 2]], Outcomes(1))
    with without_device(calls, compiles=True):
        device.draft([[1, 2, 3, 1, 2]], np.zeros(1, np.int32), WIDTH)
    assert calls.launches == {"suffix_draft_kernel": 1}
