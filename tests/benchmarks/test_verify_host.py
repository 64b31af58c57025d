"""What a verification asks of the host, by engine. With a small batch each launch is waited for."""

import pytest

pytest.importorskip("triton")
import torch
from support.host_calls import Dispatched, HostCalls, calls_of, without_device

LAUNCHES = {
    ("vllm", "greedy"): {"pieces_kernel": 1, "accept_kernel": 1},
    ("vllm", "temperature"): {"gather_kernel": 1, "stats_kernel": 1, "one_hot_kernel": 1},
    ("vllm", "top-p"): {"gather_kernel": 1, "stats_kernel": 1, "one_hot_kernel": 1},
    ("sglang", "greedy"): {"pieces_kernel": 1, "greedy_tree_kernel": 1},
    ("sglang", "temperature"): {"stats_kernel": 1, "tree_kernel": 1},
    ("sglang", "top-p"): {"stats_kernel": 1, "tree_kernel": 1},
}
RESULTS = {"vllm": 2, "sglang": 3}
"""Tensors that are handed over; nothing else is allocated."""


@pytest.mark.parametrize("requests", [1, 32])
@pytest.mark.parametrize(("engine", "kind"), LAUNCHES, ids=str)
def test_a_call_launches_its_kernels_and_nothing_else(engine, kind, requests):
    calls = calls_of(engine, kind, requests)
    assert calls.launches == LAUNCHES[engine, kind]
    assert calls.kernels == {}
    assert calls.waits == {}
    assert calls.allocations == {"new_empty": RESULTS[engine]}
    assert sum(calls.views.values()) <= 2


def test_what_is_counted():
    calls = HostCalls()
    with without_device(calls), Dispatched(calls):
        made = torch.ones(4).new_empty(4)
        made[:2].add_(torch.tensor([1.0, 2.0]))
        assert made.sum().item() is not None
    assert calls.kernels == {"ones": 1, "add_": 1, "sum": 1}
    assert calls.waits == {"lift_fresh": 1, "_local_scalar_dense": 1}
    assert calls.allocations == {"new_empty": 1}
    assert calls.views == {"slice": 1}
