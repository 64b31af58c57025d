"""What a profile of step costs depends on: the device, and how the engine was configured.

For information only: what this vLLM does not tell is left out, and nothing is refused for it.
"""

from __future__ import annotations

import logging
from typing import Any, TypedDict

__all__ = ["Machine", "machine_of"]

logger = logging.getLogger("vllm.specctl")


class Machine(TypedDict):
    """Optional fields of the contract's capabilities, by their names."""

    gpu: str | None
    dtype: str | None
    parallelism: str | None
    max_num_batched_tokens: int | None
    kv_cache_tokens: int | None
    kv_block_tokens: int | None
    experts: int | None
    experts_per_token: int | None


def machine_of(scheduler: Any) -> Machine:
    """Of a scheduler's config; None for each part that is not there."""
    config = scheduler.vllm_config
    dtype = _at(config, "model_config", "dtype")
    return Machine(
        gpu=_device_name(),
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        parallelism=_parallelism(config),
        max_num_batched_tokens=_at(scheduler, "scheduler_config", "max_num_batched_tokens"),
        kv_cache_tokens=_kv_cache_tokens(scheduler),
        kv_block_tokens=_at(config, "cache_config", "block_size"),
        experts=_at(config, "model_config", "model_arch_config", "num_experts") or None,
        experts_per_token=_at(config, "model_config", "model_arch_config", "num_experts_per_token") or None,
    )


def _at(thing: Any, *names: str) -> Any:
    for name in names:
        thing = getattr(thing, name, None)
    return thing


def _device_name() -> str | None:
    from vllm.platforms import current_platform

    try:
        return str(current_platform.get_device_name())
    except Exception as error:  # a driver's library may fail in its own ways, and the name is for people
        logger.info("specctl: the device's name is not known: %r", error)
        return None


def _parallelism(config: Any) -> str | None:
    tensor = _at(config, "parallel_config", "tensor_parallel_size")
    pipeline = _at(config, "parallel_config", "pipeline_parallel_size")
    if tensor is None:
        return None
    return f"tp{tensor}" if pipeline in (None, 1) else f"tp{tensor}-pp{pipeline}"


def _kv_cache_tokens(scheduler: Any) -> int | None:
    """As vLLM's log counts them: groups of layers share the blocks."""
    blocks = _at(scheduler, "kv_cache_config", "num_blocks")
    groups = _at(scheduler, "kv_cache_config", "kv_cache_groups")
    size = _at(scheduler, "vllm_config", "cache_config", "block_size")
    return blocks // len(groups) * size if blocks and groups and size else None
