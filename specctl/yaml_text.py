"""YAML 1.2 from untrusted files: bounded in every way, each key once, with the line of every key.

JSON is YAML too. Anchors, aliases, tags and a second document are refused: no file of specctl needs them, and
a few hundred bytes of aliases can stand for gigabytes.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from specctl.errors import SpecctlError
from specctl.local_file import read_file
from specctl.plain_text import plain_text

__all__ = ["FILE_MAX_BYTES", "Document", "KeyPath", "dump_yaml", "read_yaml"]

FILE_MAX_BYTES = 256 * 1024
NODES_MAX = 200_000
ITEMS_MAX = 10_000
DEPTH_MAX = 32
KEY_CHARACTERS_MAX = 256
KeyPath = tuple[str | int, ...]
_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_DIGITS_MAX = 18


class _Refused(Exception):
    def __init__(self, line: int, words: str) -> None:
        self.line, self.words = line, words
        super().__init__(words)


class Document:
    """The mapping of a file, and where its keys are."""

    def __init__(self, text: str, source: str, error_type: type[SpecctlError], expected: str) -> None:
        """
        Args:
            source: names the text in errors.
            expected: what an empty text, or one that is no mapping, should have held.

        Raises ``error_type`` and nothing else, whatever the text is.
        """
        self.source = source
        self.error_type = error_type
        builder = _Builder()
        self.lines = builder.lines
        """Of every key and item."""
        try:
            data = builder.build(text)
        except _Refused as refused:
            raise error_type(f"{source}:{refused.line}: {refused.words}") from None
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = min(mark.line, text.count("\n")) + 1 if mark else 1
            words = plain_text(str(error.problem or error.context))
            raise error_type(f"{source}:{line}: not YAML: {words}") from None
        except YAMLError as error:
            raise error_type(f"{source}: not YAML: {plain_text(str(error))}") from None
        except Exception as error:
            raise error_type(f"{source}: not YAML ({type(error).__name__})") from error
        if not isinstance(data, dict):
            words = f"empty; expected {expected}" if data is None else f"expected a mapping with {expected}"
            raise error_type(f"{source}:1: {words}")
        self.data: dict[str, Any] = data

    def line(self, path: KeyPath) -> int:
        """Of a key, or of the nearest one around it."""
        return next(self.lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.lines)


class _Builder:
    """Makes the values from the parser's events, on a stack of its own."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {(): 1}
        self._open: list[tuple[dict[str, Any] | list[Any], KeyPath]] = []
        self._key: list[str | None] = []
        self._root: Any = None
        self._nodes = self._documents = 0

    def build(self, text: str) -> Any:
        """Raises _Refused and whatever the parser raises."""
        for event in YAML(typ="safe").parse(text):
            line = event.start_mark.line + 1
            self._check(event, line)
            if isinstance(event, ScalarEvent):
                value = event.value
                is_text = bool(event.style) or self._is_key_next()
                self._put(value if is_text else _scalar(value, line), line)
            elif isinstance(event, CollectionEndEvent):
                self._open.pop()
                self._key.pop()
            elif isinstance(event, NodeEvent):
                container: dict[str, Any] | list[Any] = {} if isinstance(event, MappingStartEvent) else []
                path = self._put(container, line)
                if len(self._open) == DEPTH_MAX:
                    raise _Refused(line, f"nested deeper than {DEPTH_MAX} levels")
                self._open.append((container, path))
                self._key.append(None)
        return self._root

    def _check(self, event: Event, line: int) -> None:
        if isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise _Refused(line, "a second document begins here")
        if not isinstance(event, NodeEvent):
            return
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise _Refused(line, f"over {NODES_MAX} values")
        if event.anchor is not None:
            raise _Refused(line, "anchors and aliases are not allowed")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _Refused(line, f"the tag {plain_text(str(tag), 80)} is not allowed")

    def _is_key_next(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1][0], dict) and self._key[-1] is None

    def _put(self, value: Any, line: int) -> KeyPath:
        """Where it stands now."""
        if not self._open:
            self._root = value
            return ()
        container, path = self._open[-1]
        key = self._key[-1]
        if len(container) >= ITEMS_MAX and (key is None or isinstance(container, list)):
            raise _Refused(line, f"a list or mapping of over {ITEMS_MAX}")
        if isinstance(container, list):
            place: KeyPath = (*path, len(container))
            container.append(value)
        elif key is None:
            if not isinstance(value, str) or len(value) > KEY_CHARACTERS_MAX:
                raise _Refused(line, f"a key must be a text of at most {KEY_CHARACTERS_MAX} characters")
            if value in container:
                raise _Refused(line, f"{plain_text(value)}: given twice")
            place = (*path, value)
            container[value] = None
            self._key[-1] = value
        else:
            container[key] = value
            self._key[-1] = None
            return (*path, key)
        self.lines[place] = line
        return place


def read_yaml(
    path: Path, error_type: type[SpecctlError], expected: str, max_bytes: int = FILE_MAX_BYTES
) -> Document:
    """Raises ``error_type`` for whatever the file may be."""
    raw, name = read_file(path, error_type, max_bytes), plain_text(str(path))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise error_type(f"{name}: not UTF-8 ({error.reason} at byte {error.start})") from error
    return Document(text, name, error_type, expected)


def dump_yaml(data: dict[str, Any]) -> str:
    """Block style, in the order of the mapping."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.width = 110
    text = io.StringIO()
    writer.dump(data, text)
    return text.getvalue()


def _scalar(text: str, line: int) -> str | float | bool | None:
    """By the core schema of YAML 1.2: on, off, yes and no are words."""
    if text in _NULLS or text in _BOOLEANS:
        return _BOOLEANS.get(text)
    if not text[0].isascii() or text[0] not in "+-.0123456789":
        return text
    is_integer = _INTEGER.fullmatch(text) is not None
    if not is_integer and not _FLOAT.fullmatch(text):
        return text
    if len(text) > 2 * _DIGITS_MAX or (is_integer and len(text.lstrip("+-0ox")) > _DIGITS_MAX):
        raise _Refused(line, f"a number of {len(text)} characters; at most {_DIGITS_MAX} digits are read")
    if is_integer:
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    return float(text.replace(".", "") if text[-1] in "fFnN" else text)
