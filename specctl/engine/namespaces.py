"""Which requests may learn from each other's outputs."""

from __future__ import annotations

import hashlib

from specctl.draft.options import SHARED

__all__ = ["namespace_of"]


def namespace_of(adapter: str | None, salt: str | None) -> str:
    """One namespace for each adapter and cache salt, the engines' own means to keep tenants apart.

    The salt itself is a secret of its tenant: only a digest of it is kept. No adapter's name can pass for
    another adapter's with a salt: what parts a namespace is escaped in names.
    """
    parts = []
    if adapter is not None:
        parts.append(f"adapter={adapter.replace('%', '%25').replace(',', '%2C')}")
    if salt:
        raw = salt.encode("utf-8", "surrogatepass")
        parts.append(f"salt={hashlib.blake2b(raw, digest_size=8).hexdigest()}")
    return ",".join(parts) or SHARED
