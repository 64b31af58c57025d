"""Write the reference pages from the code: ``python -m tools.reference_pages``. A test holds them current.

``docs/commands.md`` comes from the commands' options, ``docs/policy-keys.md`` from the policies' models,
``docs/metrics.md`` from the metrics' names, ``docs/openapi.json`` from the messages of the HTTP routes,
``docs/support.md`` from ``tools/support.yaml``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click
from pydantic.json_schema import models_json_schema

from specctl import __version__
from specctl.cli.main import COMMANDS, cli
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TablePut
from specctl.contract.telemetry import Telemetry
from specctl.metrics import names
from specctl.policy.models import KINDS
from tools.results_figures import ROOT
from tools.support_page import support_page

DOCS = ROOT / "docs"
GENERATED = "<!-- Written by python -m tools.reference_pages. -->\n\n"


def commands_page() -> str:
    """Every command as its ``--help`` shows it."""
    parts = ["# Commands\n", GENERATED + "Exit codes are at the end of `specctl --help`.\n"]
    with click.Context(cli, info_name="specctl", **cli.context_settings) as root:
        for name in COMMANDS:
            if (command := cli.get_command(root, name)) is not None:
                parts += _help_of(command, name, root, "##")
    return "\n".join(parts)


def _help_of(command: click.Command, name: str, parent: click.Context, mark: str) -> list[str]:
    with click.Context(command, info_name=name, parent=parent) as context:
        lines = [f"{mark} {context.command_path}\n", f"```text\n{command.get_help(context).strip()}\n```\n"]
        for inner_name, inner in getattr(command, "commands", {}).items():
            lines += _help_of(inner, inner_name, context, mark + "#")
    return lines


def policy_page() -> str:
    """Every key of every kind, with its default, bounds and meaning."""
    parts = ["# Policy keys\n", GENERATED + "[Policies](policies.md) explains them.\n"]
    shared = set.intersection(*(set(kind.model_fields) for kind in KINDS.values())) - {"kind"}
    some = next(iter(KINDS.values())).model_json_schema()
    parts_of_keys: dict[str, dict[str, Any]] = {}
    parts += ["## Keys of every kind\n", _table(some, lambda key: key in shared)]
    for name, kind in KINDS.items():
        parts += [f"## kind: {name}\n", (kind.__doc__ or "").strip() + "\n"]
        schema = kind.model_json_schema()
        parts_of_keys |= schema.get("$defs", {})
        if set(schema["properties"]) - shared - {"kind"}:
            parts.append(_table(schema, lambda key: key not in shared and key != "kind"))
    for name, schema in sorted(parts_of_keys.items()):
        if "properties" in schema:
            parts += [f"## {name}\n", _table(schema, lambda key: True)]
    return "\n".join(parts)


def _table(schema: dict[str, Any], wanted: Callable[[str], bool]) -> str:
    lines = ["| key | default | bounds | meaning |", "| --- | --- | --- | --- |"]
    for key, one in schema["properties"].items():
        if wanted(key):
            default = f"`{json.dumps(one['default'])}`" if "default" in one else ""
            meaning = one.get("description", "").replace("|", "\\|").replace("\n", " ")
            lines.append(f"| `{key}` | {default} | {_bounds(one)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _bounds(one: dict[str, Any]) -> str:
    words = {"minimum": "at least {}", "exclusiveMinimum": "over {}", "maximum": "at most {}"}
    for option in [one, *one.get("anyOf", [])]:
        if "enum" in option:
            return ", ".join(f"`{value}`" for value in option["enum"])
        if "$ref" in option:
            name = option["$ref"].rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        found = [text.format(f"{option[key]:g}") for key, text in words.items() if key in option]
        if found:
            return ", ".join(found)
    return ""


METRICS = """The daemon serves `specctl_*` on its metrics port, beside `process_*` of its own process. The
plugin adds `specctl_engine_*` to the engine's own `/metrics` ([Watch](watch.md) shows how to join them).
What is not measured is missing; it is never 0.
"""


def metrics_page() -> str:
    """Every metric with its type, labels and help."""
    parts = ["# Metrics\n", GENERATED + METRICS]
    for title, metrics in (("Of the daemon", names.DAEMON), ("Of the engine", names.ENGINE)):
        lines = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
        for one in metrics:
            labels = ", ".join(f"`{label}`" for label in one.labels)
            lines.append(f"| `{one.name}` | {one.type} | {labels} | {one.help} |")
        parts += [f"## {title}\n", "\n".join(lines) + "\n"]
    return "\n".join(parts)


def openapi() -> dict[str, Any]:
    """The routes of the engine's side as an OpenAPI 3.1 document."""
    messages = (Capabilities, AppliedTable, TablePut, Telemetry)
    _, schemas = models_json_schema(
        [(one, "validation") for one in messages], ref_template="#/components/schemas/{model}"
    )

    def answer(message: type, words: str) -> dict[str, Any]:
        schema = {"$ref": f"#/components/schemas/{message.__name__}"}
        return {"description": words, "content": {"application/json": {"schema": schema}}}

    refused = {
        code: {"description": words}
        for code, words in (("401", "a token is missing or unknown"), ("403", "the scope does not allow it"))
    }
    put_refused = {
        **refused,
        "400": {"description": "the body is no table"},
        "409": {"description": "another version is in force, or another owner holds the lease"},
        "413": {"description": "the body is too large"},
        "422": {"description": "the table is refused, with a reason for each part"},
        "504": {"description": "the engine did not answer in time"},
    }
    body = {"required": True, **{k: v for k, v in answer(TablePut, "").items() if k != "description"}}
    paths: dict[str, Any] = {}
    for route, message, words in (
        ("capabilities", Capabilities, "What may be set. Constant while the engine lives."),
        ("table", AppliedTable, "The table in force."),
        ("telemetry", Telemetry, "Counters since the engine started."),
    ):
        get = {"summary": words, "responses": {"200": answer(message, words), **refused}}
        paths[f"/specctl/v1/{route}"] = {"get": get}
    paths["/specctl/v1/table"]["put"] = {
        "summary": "Put a table in force, whole or not at all.",
        "requestBody": body,
        "responses": {"200": answer(AppliedTable, "The table as applied."), **put_refused},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "specctl, the engine's side", "version": __version__},
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def pages() -> dict[str, str]:
    return {
        "commands.md": commands_page(),
        "metrics.md": metrics_page(),
        "policy-keys.md": policy_page(),
        "support.md": support_page(),
        "openapi.json": json.dumps(openapi(), indent=1) + "\n",
    }


def main() -> int:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
