"""What the plugin tells of its machine, and what it leaves out."""

from types import SimpleNamespace

import torch
from specctl_vllm.compat.machine import machine_of
from vllm.platforms import current_platform


def scheduler(**more):
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            dtype=torch.bfloat16,
            model_arch_config=SimpleNamespace(num_experts=0, num_experts_per_token=0),
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=1),
        cache_config=SimpleNamespace(block_size=16),
    )
    return SimpleNamespace(
        vllm_config=config,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8192),
        kv_cache_config=SimpleNamespace(num_blocks=101, kv_cache_groups=[1, 2]),
        **more,
    )


def test_it_is_as_the_config_says():
    machine = machine_of(scheduler())
    assert machine["dtype"] == "bfloat16"
    assert machine["parallelism"] == "tp2"
    assert machine["max_num_batched_tokens"] == 8192
    assert machine["kv_cache_tokens"] == 50 * 16, "two groups of layers share the blocks"
    assert machine["kv_block_tokens"] == 16


def test_a_dense_model_has_no_experts_and_a_mixture_tells_its_own():
    made = scheduler()
    assert machine_of(made)["experts"] is None
    made.vllm_config.model_config.model_arch_config = SimpleNamespace(
        num_experts=128, num_experts_per_token=8
    )
    machine = machine_of(made)
    assert (machine["experts"], machine["experts_per_token"]) == (128, 8)


def test_pipelines_are_named():
    made = scheduler()
    made.vllm_config.parallel_config.pipeline_parallel_size = 4
    assert machine_of(made)["parallelism"] == "tp2-pp4"


def test_what_is_not_there_is_left_out(monkeypatch):
    def fail(device_id=0):
        raise RuntimeError("no driver")

    monkeypatch.setattr(type(current_platform), "get_device_name", fail)
    machine = machine_of(SimpleNamespace(vllm_config=SimpleNamespace()))
    assert set(machine.values()) == {None}
