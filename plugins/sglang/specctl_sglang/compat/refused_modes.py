"""Modes of SGLang that an algorithm of ours does not go with, refused where a server reads its arguments."""

from __future__ import annotations

from typing import Any

from specctl_sglang.compat.releases import has_dp_attention

__all__ = ["refuse_modes"]


def refuse_modes(algorithm: str, asked: Any, **more: bool) -> None:
    """asked: a view of SGLang's arguments; more: flags of the algorithm, and whether they are set. Raises
    ValueError."""
    modes = {
        "attention data parallelism": has_dp_attention(asked),
        "--pp-size over 1": asked.pp_size > 1,
        "--disaggregation-mode": asked.disaggregation_mode not in (None, "null"),
        **{f"--{name.replace('_', '-')}": is_set for name, is_set in more.items()},
    }
    refused = [flag for flag, is_set in modes.items() if is_set]
    if refused:
        raise ValueError(f"{algorithm} does not go with {', '.join(refused)}")
