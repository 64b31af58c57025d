"""YAML from untrusted files: bounded, UTF-8, every key once, and the line of every key for error messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from specctl.errors import SpecctlError

__all__ = ["FILE_MAX_BYTES", "KeyPath", "file_stamp", "parse_yaml", "read_text"]

FILE_MAX_BYTES = 256 * 1024
KeyPath = tuple[str | int, ...]


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Differs after a change of the file; None where it cannot be looked at."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def read_text(path: Path, error_type: type[SpecctlError], max_bytes: int = FILE_MAX_BYTES) -> str:
    """Raises ``error_type`` for a file that cannot be read, is over ``max_bytes``, or is no UTF-8."""
    try:
        with path.open("rb") as file:
            raw = file.read(max_bytes + 1)
    except OSError as error:
        raise error_type(f"{path}: {error.strerror or error}") from error
    if len(raw) > max_bytes:
        raise error_type(f"{path}: over {max_bytes} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise error_type(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from error


def parse_yaml(
    text: str, source: str, error_type: type[SpecctlError], expected: str
) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The mapping, and the line of every key in it.

    Args:
        source: names the text in errors.
        expected: what an empty text, or one that is no mapping, should have held.

    Raises ``error_type``, also for a key that is given twice.
    """
    node = _compose(text, source, error_type, expected)
    lines = dict(_lines(node, ()))
    repeated = [f"{source}:{line}: {key}: given twice" for key, line in _repeated(node)]
    if repeated:
        raise error_type("\n".join(repeated))
    data = _construct(node, source, error_type)
    if not isinstance(data, dict):
        raise error_type(f"{source}:1: expected a mapping with {expected}")
    return data, lines


def _compose(text: str, source: str, error_type: type[SpecctlError], expected: str) -> yaml.Node:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise error_type(f"{source}:{line}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise error_type(f"{source}: not YAML: {error}") from error
    if node is None:
        raise error_type(f"{source}:1: empty; expected {expected}")
    return node


def _construct(node: yaml.Node, source: str, error_type: type[SpecctlError]) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise error_type(f"{source}: not YAML: {error}") from error
    finally:
        loader.dispose()


def _lines(node: yaml.Node, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _lines(value, (*path, str(key.value)))
            yield (*path, str(key.value)), key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, (*path, index))


def _repeated(node: yaml.Node) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if str(key.value) in seen:
                yield str(key.value), key.start_mark.line + 1
            seen.add(str(key.value))
            yield from _repeated(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated(item)
