"""What stands around the measurements of verify kernels on a GPU."""

import pytest

pytest.importorskip("triton")
import torch

from benchmarks.gpu import kernels, verify_by_kernel, verify_sampled


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_the_kernels_are_not_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["kernels", "--folder", str(tmp_path)])
    assert kernels.main() == 1
    assert "needs a GPU" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["verify_sampled", "--output", str(tmp_path / "x")])
    with pytest.raises(SystemExit, match="needs a GPU"):
        verify_sampled.main()


def test_other_launch_options_of_a_kernel_go_before_its_own():
    class Kernel:
        def __getitem__(self, grid):
            return lambda *values, **named: (grid, values, named)

    tuned = verify_by_kernel._Tuned(Kernel(), num_warps=16)
    assert tuned[(3,)](1, num_warps=8, SCAN=512) == ((3,), (1,), {"num_warps": 16, "SCAN": 512})
    assert verify_by_kernel.pair("_AT_ONCE=32") == ("_AT_ONCE", 32)


def test_a_constant_that_there_is_none_of_is_refused(monkeypatch):
    monkeypatch.setattr("sys.argv", ["verify_by_kernel", "--set", "_NO_SUCH=1"])
    with pytest.raises(AttributeError, match="_NO_SUCH"):
        verify_by_kernel.main()
