"""Names inside an engine that a plugin relies on, and the check for them before anything is changed.

Sources are parsed, not imported: the check costs no engine start and works on an unpacked wheel.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Seam", "members", "missing_seams"]


@dataclass(frozen=True)
class Seam:
    """A module's or class's member, with the leading parameters that are passed by position or name.

    Without parameters it may be anything: a class, a field, an attribute that a method sets, a name that the
    module imports (a patch there must still be looked up there).
    """

    module: str
    qualname: str
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}.{self.qualname}({', '.join(self.parameters)})"


def members(module: str, owner: str, *names: str) -> tuple[Seam, ...]:
    """Of one class, whatever they are."""
    return tuple(Seam(module, f"{owner}.{name}") for name in names)


Parse = Callable[[Path], ast.Module]


def missing_seams(seams: Iterable[Seam], root: Path | None = None) -> list[str]:
    """One sentence for each seam that is not as expected; empty when all is well.

    root: the folder that holds the engine's package; None: the installed one.
    """
    # Kept for this call only: the trees of some large modules.
    parse = functools.cache(lambda path: ast.parse(path.read_text(encoding="utf-8")))
    return [problem for seam in seams if (problem := _problem(seam, root, parse)) is not None]


def _problem(seam: Seam, root: Path | None, parse: Parse) -> str | None:
    try:
        source = _source(seam.module, root)
        if source is None:
            return f"{seam}: module {seam.module} not found"
        node: ast.AST = parse(source)
    except (OSError, SyntaxError) as error:
        return f"{seam}: {seam.module} cannot be read ({error})"
    for name in seam.qualname.split("."):
        found = _member(node, name)
        if found is None:
            return f"{seam}: {name} not found"
        node = found
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None if not seam.parameters else f"{seam}: not a function"
    got = tuple(arg.arg for arg in (*node.args.posonlyargs, *node.args.args))
    if got[: len(seam.parameters)] != seam.parameters:
        return f"{seam}: got parameters ({', '.join(got)})"
    return None


def _source(module: str, root: Path | None) -> Path | None:
    if root is not None:
        base = root.joinpath(*module.split("."))
        candidates = [base.with_suffix(".py"), base / "__init__.py"]
        return next((path for path in candidates if path.is_file()), None)
    package = importlib.util.find_spec(module.partition(".")[0])
    if package is None or not package.submodule_search_locations:
        return None
    return _source(module, Path(package.submodule_search_locations[0]).parent)


def _member(node: ast.AST, name: str) -> ast.AST | None:
    """What ``name`` is in a module or class; for an attribute of instances, a statement that sets it."""
    found = [child for child in _statements(getattr(node, "body", ())) if name in _names(child)]
    if found:
        # Imported for annotations only, and defined below: the definition counts.
        return next(
            (child for child in found if not isinstance(child, ast.Import | ast.ImportFrom)), found[0]
        )
    if isinstance(node, ast.ClassDef):
        return next((child for child in ast.walk(node) if _sets_on_self(child, name)), None)
    return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for child in body:
        yield child
        if isinstance(child, ast.If | ast.Try):
            for part in (child, *getattr(child, "handlers", ())):
                yield from _statements(part.body)
            yield from _statements(child.orelse)


def _names(child: ast.stmt) -> set[str]:
    if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {child.name}
    if isinstance(child, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in child.names}
    return {target.id for target in _targets(child) if isinstance(target, ast.Name)}


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.AnnAssign):
        return [node.target]
    targets = node.targets if isinstance(node, ast.Assign) else []
    # a, b = c sets both.
    return [
        each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]


def _sets_on_self(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(target, ast.Attribute)
        and target.attr == name
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
        for target in _targets(node)
    )
