"""What every plugin's capabilities have in common."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from specctl import __version__
from specctl.contract import CONTRACT_VERSION
from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import Setting
from specctl.engine.buckets import DecodeBatchBuckets

__all__ = ["described"]

_ROWS_MAX = 64
_EVERY_MIN_STEPS = 2
"""A sample has the steps of its row around it."""


def described(
    settings: Sequence[Setting],
    why_not_controllable: str | None,
    decode_batch_max: int,
    *,
    can_sample: bool = True,
    **known: Any,
) -> Capabilities:
    """settings: prepared ones, each once; known: what only the engine knows, by the contract's names."""
    is_controllable = why_not_controllable is None
    return Capabilities(
        contract_version=CONTRACT_VERSION,
        plugin_version=__version__,
        boot_id=uuid.uuid4().hex,
        controllable=is_controllable,
        why_not_controllable=why_not_controllable,
        num_speculative_tokens_legal=tuple(sorted({one.num_speculative_tokens for one in settings})),
        settings=tuple(settings),
        sample_every_min_steps=_EVERY_MIN_STEPS if is_controllable and can_sample else None,
        decode_batch_max=decode_batch_max,
        decode_batch_buckets=DecodeBatchBuckets(decode_batch_max).uppers,
        rows_max=_ROWS_MAX,
        **known,
    )
