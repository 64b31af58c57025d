"""``specctl policy validate|show|schema``. Each raises PolicyError for a wrong file."""

from __future__ import annotations

import click

from specctl.cli.options import POLICY
from specctl.policy.loader import find_policy, load_policy
from specctl.policy.models import POLICY_ADAPTER
from specctl.terminal import examples, json_option, print_json
from specctl.yaml_text import dump_yaml

__all__ = ["policy"]


@click.group(
    epilog=examples(
        "specctl policy validate policy.yaml",
        "specctl policy show balanced > policy.yaml",
        "specctl policy schema > policy.schema.json",
    )
)
def policy() -> None:
    """Check, show or describe policy files. FILE is a file, or a shipped policy's name."""


@policy.command(epilog=examples("specctl policy validate policy.yaml"))
@click.argument("file", type=POLICY)
@json_option()
def validate(file: str, as_json: bool) -> int:
    """Say what is wrong with a policy file. Exit code 3: something is."""
    path = find_policy(file)
    kind = load_policy(path).kind
    if as_json:
        print_json({"file": str(path), "valid": True, "kind": kind})
    else:
        click.echo(f"{path}: valid, kind {kind}")
    return 0


@policy.command(epilog=examples("specctl policy show balanced"))
@click.argument("file", type=POLICY)
@json_option("JSON in place of YAML")
def show(file: str, as_json: bool) -> int:
    """Print a policy with every default filled in."""
    shown = load_policy(find_policy(file)).model_dump(mode="json")
    if as_json:
        print_json(shown)
    else:
        click.echo(dump_yaml(shown), nl=False)
    return 0


@policy.command(epilog=examples("specctl policy schema", "specctl policy schema balanced"))
@click.argument("file", type=POLICY, required=False)
@json_option("the schema is JSON with or without it")
def schema(file: str | None, as_json: bool) -> int:
    """Print the JSON schema of FILE's kind, or of every kind."""
    described = POLICY_ADAPTER.json_schema()
    if file is not None:
        described = type(load_policy(find_policy(file))).model_json_schema()
    print_json(described)
    return 0
