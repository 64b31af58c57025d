"""Policy files: YAML in, a checked policy out. Errors name file, line, key and the allowed values."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specctl.errors import PolicyError
from specctl.policy.models import KINDS, POLICY_ADAPTER, AnyPolicy
from specctl.yaml_text import KeyPath, parse_yaml, read_text

__all__ = ["find_policy", "load_policy", "parse_policy", "shipped_policies"]


def shipped_policies(kind: str = "") -> list[Path]:
    """The policies that come with specctl, or a ``kind`` of files in a folder of theirs: from the checkout,
    or as installed."""
    here = Path(__file__).resolve()
    for folder in (here.parents[2] / "policies", Path(sys.prefix) / "share/specctl/policies"):
        files = sorted((folder / kind).glob("*.yaml"))
        if files:
            return files
    return []


def find_policy(name_or_path: str) -> Path:
    """A path, or the bare name of a shipped policy. Raises PolicyError when there is no such file."""
    path = Path(name_or_path)
    if path.exists():
        return path
    shipped = shipped_policies()
    wanted = path.name.removesuffix(".yaml")
    for candidate in shipped:
        if candidate.stem == wanted and name_or_path in (wanted, f"{wanted}.yaml", f"policies/{wanted}.yaml"):
            return candidate
    known = ", ".join(candidate.stem for candidate in shipped) or "none"
    raise PolicyError(f"{name_or_path}: no such file; shipped policies: {known}")


def load_policy(path: Path) -> AnyPolicy:
    """Raises PolicyError that lists everything wrong with the file."""
    return parse_policy(read_text(path, PolicyError), str(path))


def parse_policy(text: str, source: str) -> AnyPolicy:
    """``source`` names the text in errors. Raises PolicyError."""
    data, lines = parse_yaml(text, source, PolicyError, f"the key kind: {', '.join(KINDS)}")
    if data.get("kind") is False:
        # YAML 1.1 reads a bare `off` as false.
        data["kind"] = "off"
    try:
        return POLICY_ADAPTER.validate_python(data)
    except ValidationError as error:
        words = [_words(details, lines, source, data) for details in error.errors(include_url=False)]
        raise PolicyError("\n".join(words)) from error


def _words(details: ErrorDetails, lines: dict[KeyPath, int], source: str, data: dict[str, Any]) -> str:
    kind = str(data.get("kind", ""))
    path = tuple(details["loc"])
    if path[:1] == (kind,):
        path = path[1:]
    line = next((lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in lines), 1)
    if details["type"] == "value_error":
        # A contradiction between keys: the line of the first one that the message names.
        named = [at for key, at in lines.items() if key[: len(path)] == path and key and _names(details, key)]
        line = min(named, default=line)
    return f"{source}:{line}: {_what(details, path, kind)}"


def _names(details: ErrorDetails, key: KeyPath) -> bool:
    return str(key[-1]) in details["msg"].replace(":", " ").replace(".", " ").split()


def _what(details: ErrorDetails, path: KeyPath, kind: str) -> str:
    key = ".".join(map(str, path)) or "kind"
    error_type = details["type"]
    if error_type in ("union_tag_not_found", "union_tag_invalid"):
        got = f", got {kind!r}" if kind else " (missing)"
        return f"kind: expected one of {', '.join(KINDS)}{got}"
    if error_type == "extra_forbidden":
        keys = _keys_at(KINDS[kind], path[:-1])
        near = difflib.get_close_matches(str(path[-1]), keys, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{key}: unknown key{hint} Allowed here: {', '.join(keys)}"
    message = details["msg"].removeprefix("Value error, ")
    if error_type == "value_error":
        return f"{key}: {message}" if path else message
    if error_type == "missing":
        return f"{key}: missing{_allowed(kind, path)}"
    return f"{key}: {message}, got {details['input']!r}{_allowed(kind, path)}"


def _keys_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    schema = _schema_at(model.model_json_schema(), path)
    return sorted(schema.get("properties", {}))


def _allowed(kind: str, path: KeyPath) -> str:
    """`` (allowed: ...)`` from the field's bounds in the schema; empty when it has none."""
    if kind not in KINDS:
        return ""
    schema = _schema_at(KINDS[kind].model_json_schema(), path)
    options = [schema, *schema.get("anyOf", [])]
    words = []
    for option in options:
        bounds = [
            f"{sign} {option[name]:g}"
            for name, sign in (
                ("minimum", "at least"),
                ("exclusiveMinimum", "above"),
                ("maximum", "at most"),
                ("exclusiveMaximum", "below"),
            )
            if name in option
        ]
        if "const" in option:
            bounds.append(json.dumps(option["const"]))
        if option.get("type") == "null":
            words.append("null")
        elif option.get("type") and (bounds or "anyOf" not in option):
            words.append(" ".join([option["type"], ", ".join(bounds)]).strip())
    return f" (allowed: {' or '.join(words)})" if words else ""


def _schema_at(schema: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    definitions = schema.get("$defs", {})
    here = schema
    for part in path:
        here = here.get("items", {}) if isinstance(part, int) else here.get("properties", {}).get(part, {})
        for option in [here, *here.get("allOf", []), *here.get("anyOf", [])]:
            reference = str(option.get("$ref", ""))
            if reference:
                here = definitions[reference.rsplit("/", 1)[-1]]
            elif "items" in option or "properties" in option:
                here = option
    return here
