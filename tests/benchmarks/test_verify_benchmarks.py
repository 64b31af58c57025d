"""What stands around the measurements of verify kernels on a GPU."""

import pytest

pytest.importorskip("triton")
import torch

from benchmarks.gpu import kernels


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_the_kernels_are_not_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["kernels", "--folder", str(tmp_path)])
    assert kernels.main() == 1
    assert "needs a GPU" in capsys.readouterr().out
