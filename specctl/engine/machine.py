"""What a profile of step costs depends on: the device, and how the engine was configured.

For information only: what an engine does not tell is left out, and nothing is refused for it.
"""

from __future__ import annotations

from typing import Any, TypedDict

__all__ = ["EXPERT_KEYS", "Machine", "at", "dtype_name", "parallelism"]

EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Of a checkpoint's config, for the experts of a layer."""


class Machine(TypedDict, total=False):
    """Optional fields of the contract's capabilities, by their names."""

    gpu: str | None
    dtype: str | None
    parallelism: str | None
    max_num_batched_tokens: int | None
    kv_cache_tokens: int | None
    kv_block_tokens: int | None
    experts: int | None
    experts_per_token: int | None


def at(thing: Any, *names: str) -> Any:
    """The attribute at the end of a path of names; None where one of them is not there."""
    for name in names:
        thing = getattr(thing, name, None)
    return thing


def dtype_name(dtype: Any) -> str | None:
    """``bfloat16`` of torch.bfloat16."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def parallelism(tensor: int | None, pipeline: int | None) -> str | None:
    """``tp2`` or ``tp2-pp4``, from the sizes; None where they are not known."""
    if tensor is None:
        return None
    return f"tp{tensor}" if pipeline in (None, 1) else f"tp{tensor}-pp{pipeline}"
