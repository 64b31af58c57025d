"""What a profile of step costs depends on: the device, and how the engine was configured.

For information only: what this SGLang does not tell is left out, and nothing is refused for it.
"""

from __future__ import annotations

from typing import Any, TypedDict

import torch

__all__ = ["Machine", "has_nvidia_gpu", "machine_of"]


class Machine(TypedDict):
    """Optional fields of the contract's capabilities, by their names."""

    gpu: str | None
    dtype: str | None
    parallelism: str | None
    max_num_batched_tokens: int | None
    kv_cache_tokens: int | None
    kv_block_tokens: int | None


def has_nvidia_gpu() -> bool:
    return torch.version.cuda is not None and torch.cuda.is_available()


def machine_of(scheduler: Any) -> Machine:
    """Of a scheduler; None for each part that is not there."""
    dtype = _at(scheduler, "model_config", "dtype")
    arguments = getattr(scheduler, "server_args", None)
    return Machine(
        gpu=_device_name(scheduler),
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        parallelism=_parallelism(arguments),
        max_num_batched_tokens=_at(scheduler, "max_prefill_tokens"),
        kv_cache_tokens=_at(scheduler, "max_total_num_tokens"),
        kv_block_tokens=_at(scheduler, "page_size"),
    )


def _device_name(scheduler: Any) -> str | None:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    # As vLLM names it.
    return "cpu" if str(getattr(scheduler, "device", None)) == "cpu" else None


def _at(thing: Any, *names: str) -> Any:
    for name in names:
        thing = getattr(thing, name, None)
    return thing


def _parallelism(arguments: Any) -> str | None:
    tensor, pipeline = _at(arguments, "tp_size"), _at(arguments, "pp_size")
    if tensor is None:
        return None
    return f"tp{tensor}" if pipeline in (None, 1) else f"tp{tensor}-pp{pipeline}"
