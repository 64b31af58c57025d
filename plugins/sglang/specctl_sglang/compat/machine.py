"""The device, and how SGLang was configured (specctl.engine.machine)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from specctl.engine.machine import EXPERT_KEYS, Machine, at, dtype_name, parallelism

__all__ = ["has_nvidia_gpu", "machine_of"]

_CHOSEN_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_top_k", "moe_topk")


def has_nvidia_gpu() -> bool:
    return torch.version.cuda is not None and torch.cuda.is_available()


def machine_of(scheduler: Any) -> Machine:
    """Of a scheduler; None for each part that is not there."""
    config = at(scheduler, "model_config", "hf_text_config")
    return Machine(
        gpu=_device_name(scheduler),
        dtype=dtype_name(at(scheduler, "model_config", "dtype")),
        parallelism=parallelism(
            at(scheduler, "server_args", "tp_size"), at(scheduler, "server_args", "pp_size")
        ),
        max_num_batched_tokens=at(scheduler, "max_prefill_tokens"),
        kv_cache_tokens=at(scheduler, "max_total_num_tokens"),
        kv_block_tokens=at(scheduler, "page_size"),
        experts=_number(config, EXPERT_KEYS),
        experts_per_token=_number(config, _CHOSEN_KEYS),
    )


def _number(config: Any, keys: Iterable[str]) -> int | None:
    """The first that a model's config has, and that is a number over 0."""
    found = (getattr(config, key, None) for key in keys)
    return next((value for value in found if type(value) is int and value > 0), None)


def _device_name(scheduler: Any) -> str | None:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    # As vLLM names it.
    return "cpu" if str(getattr(scheduler, "device", None)) == "cpu" else None
