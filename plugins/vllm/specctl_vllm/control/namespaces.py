"""Which requests may learn from each other's outputs."""

from __future__ import annotations

import hashlib
from typing import Any

from specctl.draft.options import SHARED

__all__ = ["namespace_of"]


def namespace_of(lora_request: Any, cache_salt: str | None) -> str:
    """One namespace for each adapter and cache salt, vLLM's own means to keep tenants apart.

    The salt itself is a secret of its tenant: only a digest of it is kept.
    """
    parts = []
    if lora_request is not None:
        parts.append(f"adapter={lora_request.lora_name}")
    if cache_salt:
        parts.append(f"salt={hashlib.blake2b(cache_salt.encode(), digest_size=8).hexdigest()}")
    return ",".join(parts) or SHARED
