"""What tests of both plugins ask of an engine's source and of a plugin's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from specctl.engine.engine_check import Adapter
from tools.check_engines import sources_of

_GUARDS = {"GUARD.call", "GUARD.ran", "GUARD.failed", "_guarded"}


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


def guarded(adapter: Adapter) -> set[str]:
    """Names under which a plugin's own code runs in its guard."""
    found = set()
    for path in adapter.folder.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {
            target.id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _GUARDS:
                first = node.args[0]
                found.add(first.value if isinstance(first, ast.Constant) else named.get(ast.unparse(first)))
            elif isinstance(node, ast.FunctionDef):
                found |= {node.name for one in node.decorator_list if ast.unparse(one) == "_guarded"}
    return found - {None}
