"""Namespaces, by the names that vLLM has for what keeps tenants apart."""

from __future__ import annotations

from typing import Any

from specctl.engine import namespaces

__all__ = ["namespace_of"]


def namespace_of(lora_request: Any, cache_salt: str | None) -> str:
    return namespaces.namespace_of(None if lora_request is None else lora_request.lora_name, cache_salt)
