"""``specctl policy validate|show|schema``."""

from __future__ import annotations

import argparse
import json

from specctl.policy.loader import find_policy, load_policy
from specctl.policy.models import POLICY_ADAPTER
from specctl.yaml_text import dump_yaml

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, action, words in (
        ("validate", validate, "say what is wrong with a policy file"),
        ("show", show, "print a policy with every default filled in"),
        ("schema", schema, "print the JSON schema (of FILE's kind, when given)"),
    ):
        command = actions.add_parser(name, help=words, description=words)
        command.add_argument("file", nargs="?" if name == "schema" else None, metavar="FILE")
        command.set_defaults(action=action)


def run(options: argparse.Namespace) -> int:
    """Raises PolicyError."""
    return int(options.action(options.file))


def validate(file: str) -> int:
    """Raises PolicyError with everything that is wrong."""
    path = find_policy(file)
    policy = load_policy(path)
    print(f"{path}: valid, kind {policy.kind}")
    return 0


def show(file: str) -> int:
    """Raises PolicyError."""
    policy = load_policy(find_policy(file))
    print(dump_yaml(policy.model_dump(mode="json")), end="")
    return 0


def schema(file: str | None) -> int:
    """Raises PolicyError for a wrong ``file``; without one the schema covers every kind."""
    described = POLICY_ADAPTER.json_schema()
    if file is not None:
        described = type(load_policy(find_policy(file))).model_json_schema()
    print(json.dumps(described, indent=2))
    return 0
