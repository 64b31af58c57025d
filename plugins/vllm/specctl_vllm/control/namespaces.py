"""Namespaces, by the names that vLLM has for what keeps tenants apart."""

from __future__ import annotations

from typing import Any

from specctl.engine import namespaces

__all__ = ["namespace_of"]


def namespace_of(request: Any) -> str:
    adapter = request.lora_request
    return namespaces.namespace_of(None if adapter is None else adapter.lora_name, request.cache_salt)
