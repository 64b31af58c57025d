"""The benchmark of verify kernels compares with the references before it times."""

import pytest
import torch

from benchmarks.gpu import verify_by_kernel, verify_cases


@pytest.mark.parametrize("mode", ["greedy", "temperature"])
def test_a_case_is_timed(mode):
    found = verify_by_kernel.measured(verify_cases.Case(16, 300, torch.float32), mode, 1, True)
    assert set(found["us"]) >= {"ours", "one read"}
    assert "one read" in verify_by_kernel.line(found)


def test_other_tokens_than_the_references_have_no_time(monkeypatch):
    wrong = torch.zeros(16, 8, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    monkeypatch.setattr(verify_cases.Arms, "ours", lambda self, i: wrong)
    found = verify_by_kernel.measured(verify_cases.Case(16, 300, torch.float32), "greedy", 1, False)
    assert verify_by_kernel.line(found).startswith("REFUSED: other tokens")
