"""YAML files that hold one pydantic model. What is wrong is said by file, line, key and allowed values."""

from __future__ import annotations

import difflib
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specctl.errors import SimulationInputError
from specctl.plain_text import plain_text, plain_value
from specctl.yaml_text import Document, KeyPath, read_yaml

__all__ = ["as_model", "load_model"]

FILE_MAX_BYTES = 4 * 1024 * 1024
ERRORS_MAX = 20
_BOUNDS = (
    ("minimum", "at least"),
    ("exclusiveMinimum", "above"),
    ("maximum", "at most"),
    ("exclusiveMaximum", "below"),
)
_Model = TypeVar("_Model", bound=BaseModel)


def load_model(path: Path, model: type[_Model]) -> _Model:
    """Raises SimulationInputError that lists what is wrong with the file. JSON is YAML too."""
    keys = ", ".join(list(model.model_fields)[:4])
    document = read_yaml(path, SimulationInputError, f"the keys {keys}, ...", FILE_MAX_BYTES)
    return as_model(document, model)


def as_model(document: Document, model: type[_Model]) -> _Model:
    """Raises the document's error type, and nothing else, whatever it holds."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise document.error_type("\n".join(_refusals(error, document, model))) from error
    except Exception as error:
        words = f"{document.source}: cannot be used ({type(error).__name__})"
        raise document.error_type(words) from error


def _refusals(error: ValidationError, document: Document, model: type[BaseModel]) -> list[str]:
    found = error.errors(include_url=False)
    words = [_words(details, document, model) for details in found[:ERRORS_MAX]]
    return (
        words
        if len(found) <= ERRORS_MAX
        else [*words, f"{document.source}: and {len(found) - ERRORS_MAX} more"]
    )


def _words(details: ErrorDetails, document: Document, model: type[BaseModel]) -> str:
    path = tuple(details["loc"])
    line = document.line(path)
    if details["type"] == "value_error":
        # A contradiction between keys: the line of the first one that the message names.
        said = set(re.split(r"[\s:.]+", details["msg"]))
        lines = document.lines.items()
        line = min(
            (at for key, at in lines if key and key[: len(path)] == path and str(key[-1]) in said),
            default=line,
        )
    return f"{document.source}:{line}: {plain_text(_what(details, path, model), 1000)}"


def _what(details: ErrorDetails, path: KeyPath, model: type[BaseModel]) -> str:
    key, error_type = plain_text(".".join(map(str, path))) or "file", details["type"]
    message = details["msg"].removeprefix("Value error, ")
    if error_type == "extra_forbidden":
        keys = sorted(_schema_at(model, path[:-1]).get("properties", {}))
        near = difflib.get_close_matches(str(path[-1]), keys, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "."
        return f"{key}: unknown key{hint} Allowed here: {', '.join(keys)}"
    if error_type == "value_error":
        return f"{key}: {message}" if path else message
    if error_type == "missing":
        return f"{key}: missing{_allowed(model, path)}"
    return f"{key}: {message}, got {plain_value(details['input'])}{_allowed(model, path)}"


def _allowed(model: type[BaseModel], path: KeyPath) -> str:
    """`` (allowed: ...)`` from the field's bounds in the schema; empty when it has none."""
    schema = _schema_at(model, path)
    words = []
    for option in [schema, *schema.get("anyOf", [])]:
        bounds = [f"{sign} {option[name]:g}" for name, sign in _BOUNDS if name in option]
        if "const" in option:
            bounds.append(json.dumps(option["const"]))
        if option.get("type") == "null":
            words.append("null")
        elif option.get("type") not in (None, "object", "array") and (bounds or "anyOf" not in option):
            words.append(" ".join([option["type"], ", ".join(bounds)]).strip())
    return f" (allowed: {' or '.join(words)})" if words else ""


@lru_cache(maxsize=16)
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _schema_at(model: type[BaseModel], path: KeyPath) -> dict[str, Any]:
    schema = here = _schema(model)
    definitions = schema.get("$defs", {})
    for part in path:
        here = here.get("items", {}) if isinstance(part, int) else here.get("properties", {}).get(part, {})
        for option in [here, *here.get("allOf", []), *here.get("anyOf", [])]:
            reference = str(option.get("$ref", ""))
            if reference:
                here = definitions[reference.rsplit("/", 1)[-1]]
            elif "items" in option or "properties" in option:
                here = option
    return here
