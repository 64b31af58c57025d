"""When the scheduler need not ask the device how long a request has become."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch


class FutureMap:
    """SGLang's, as far as it is relied on."""

    def __init__(self, rows):
        self.req_pool_size = rows
        self.publish_ready = SimpleNamespace(wait=lambda: None)
        self.fwd_prepare_d2h_stream = object()
        self.new_seq_lens_buf = torch.arange(100, 100 + rows)
        self.asked = 0

    def resolve_seq_lens_cpu(self, batch):
        self.asked += 1


@pytest.fixture
def lengths_map(monkeypatch):
    for name in ("sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.managers.overlap_utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(
        sys.modules["sglang.srt.managers.overlap_utils"], "FutureMap", FutureMap, raising=False
    )
    monkeypatch.delitem(sys.modules, "specctl_sglang.compat.host_lengths", raising=False)
    module = importlib.import_module("specctl_sglang.compat.host_lengths")
    monkeypatch.delitem(sys.modules, "specctl_sglang.compat.host_lengths")
    return module.HostLengthsMap(8)


def batch(rows):
    indices = torch.tensor(rows)
    return SimpleNamespace(
        spec_info=SimpleNamespace(future_indices=indices),
        req_pool_indices_cpu=indices,
        seq_lens=None,
        seq_lens_cpu=None,
        seq_lens_sum=None,
    )


def test_after_plain_steps_the_host_knows(lengths_map):
    lengths_map.specctl_lengths.note(torch.tensor([2, 5]), torch.tensor([20, 50]))
    one = batch([5, 2])
    lengths_map.resolve_seq_lens_cpu(one)
    assert lengths_map.asked == 0
    assert (one.seq_lens_cpu.tolist(), one.seq_lens_sum) == ([50, 20], 70)
    assert one.seq_lens.tolist() == [105, 102]


@pytest.mark.parametrize("known", [None, [2]], ids=["nothing", "one of two"])
def test_after_a_verification_the_device_is_asked(lengths_map, known):
    lengths_map.specctl_lengths.note(torch.tensor([2, 5]), torch.tensor([20, 50]))
    lengths_map.specctl_lengths.note(torch.tensor([5] if known else [2, 5]), None)
    lengths_map.resolve_seq_lens_cpu(batch([2, 5]))
    assert lengths_map.asked == 1


def test_without_a_device_or_at_the_first_step_it_is_as_in_sglang(lengths_map):
    lengths_map.specctl_lengths.note(torch.tensor([1]), torch.tensor([9]))
    lengths_map.fwd_prepare_d2h_stream = None
    lengths_map.resolve_seq_lens_cpu(batch([1]))
    first = batch([1])
    first.spec_info = None
    lengths_map.resolve_seq_lens_cpu(first)
    assert lengths_map.asked == 2
