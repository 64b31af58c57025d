"""What tests of both plugins ask of an engine's source and of a plugin's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from specctl.engine.engine_check import Adapter
from tools.check_engines import sources_of


def sources_or_skip(engine: str, release: str) -> Path:
    try:
        return sources_of(engine, release)
    except RuntimeError as error:
        pytest.skip(str(error))


def importers(adapter: Adapter) -> set[str]:
    """Files of a plugin that import its engine, by folder and name."""
    return {
        path.relative_to(adapter.folder).with_suffix("").as_posix()
        for path in adapter.folder.rglob("*.py")
        if any(module.partition(".")[0] == adapter.package for module in _imported(path))
    }


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
