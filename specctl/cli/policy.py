"""``specctl policy validate|show|schema``."""

from __future__ import annotations

import json

import yaml

from specctl.policy.loader import find_policy, load_policy
from specctl.policy.models import POLICY_ADAPTER

__all__ = ["schema", "show", "validate"]


def validate(file: str) -> int:
    """Raises PolicyError with everything that is wrong."""
    path = find_policy(file)
    policy = load_policy(path)
    print(f"{path}: valid, kind {policy.kind}")
    return 0


def show(file: str) -> int:
    """Raises PolicyError."""
    policy = load_policy(find_policy(file))
    print(yaml.safe_dump(policy.model_dump(mode="json"), sort_keys=False), end="")
    return 0


def schema(file: str | None) -> int:
    """Raises PolicyError for a wrong ``file``; without one the schema covers every kind."""
    described = POLICY_ADAPTER.json_schema()
    if file is not None:
        described = type(load_policy(find_policy(file))).model_json_schema()
    print(json.dumps(described, indent=2))
    return 0
