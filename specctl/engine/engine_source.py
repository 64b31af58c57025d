"""An engine's package, read and not imported: its names, classes with their bases, and signatures.

A check costs no engine start this way, and works on an unpacked wheel.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Found", "Module", "Sources", "installed_root"]

_NO_MEMBERS = {"object", "ABC", "Protocol", "Generic", "NamedTuple", "Struct", "str", "int"}
_ENUMS = {"Enum", "IntEnum", "IntFlag", "StrEnum"}
_OF_AN_ENUM = {"name", "value"}


@dataclass(frozen=True)
class Module:
    name: str


@dataclass(frozen=True)
class Found:
    """A statement, and the module that it stands in."""

    module: str
    node: ast.AST

    @property
    def is_function(self) -> bool:
        return isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef)

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)


def installed_root(package: str) -> Path | None:
    """The folder that holds an installed package; None: it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]).parent


class Sources:
    def __init__(self, package: str, root: Path) -> None:
        """root: the folder that holds the package."""
        self.package, self.root = package, root
        self.problems: dict[str, str] = {}
        """Of modules that cannot be read."""
        self.tree = functools.cache(self._tree)
        self.bases = functools.cache(self._bases)
        self._in_module = functools.cache(lambda module: names_in(getattr(self.tree(module), "body", ())))
        self._in_body = functools.cache(self._body_names)
        self._on_self = functools.cache(self._self_names)
        self.resolve = functools.cache(self._resolve)
        self.member = functools.cache(self._member)

    def _tree(self, module: str) -> ast.Module | None:
        path = self.path(module)
        if path is None:
            return None
        try:
            return ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError) as error:
            self.problems[module] = f"{module} cannot be read ({error})"
            return None

    def path(self, module: str) -> Path | None:
        base = self.root.joinpath(*module.split("."))
        return next((one for one in (base.with_suffix(".py"), base / "__init__.py") if one.is_file()), None)

    def _resolve(self, module: str, name: str) -> Found | Module | None:
        """What a name of a module is, where it was defined; None: there is no such name."""
        found = self._in_module(module).get(name)
        if isinstance(found, ast.Import | ast.ImportFrom):
            return self._imported(module, found, name)
        if found is not None:
            return Found(module, found)
        return Module(f"{module}.{name}") if self.path(f"{module}.{name}") is not None else None

    def _imported(self, module: str, node: ast.Import | ast.ImportFrom, name: str) -> Found | Module | None:
        alias = next(one for one in node.names if (one.asname or one.name.partition(".")[0]) == name)
        is_whole = isinstance(node, ast.Import)
        source = alias.name if isinstance(node, ast.Import) else self.source_of(module, node)
        if source.partition(".")[0] != self.package:
            return Found(module, node)
        if not is_whole:
            return self.resolve(source, alias.name)
        whole = source if alias.asname else name
        return Module(whole) if self.path(whole) is not None else None

    def source_of(self, module: str, node: ast.ImportFrom) -> str:
        """The module that is imported from, dots at its front resolved."""
        if not node.level:
            return node.module or ""
        path = self.path(module)
        is_package = path is not None and path.name == "__init__.py"
        above = module.split(".")[: len(module.split(".")) - node.level + is_package]
        return ".".join([*above, *([node.module] if node.module else [])])

    def find(self, target: str) -> Found | Module | None:
        """``package.module:Class.attribute``, or the attribute of a base of the class."""
        module, _, path = target.partition(":")
        first, *more = path.split(".")
        found = self.resolve(module, first)
        for name in more:
            if not isinstance(found, Found) or not found.is_class:
                return None
            found = self.member(found, name)
        return found

    def _bases(self, cls: Found) -> tuple[list[Found], bool]:
        """The class and those before it, and whether one of them is not the engine's."""
        order, is_open, todo = [], False, [cls]
        while todo:
            one = todo.pop(0)
            if one in order or not isinstance(one.node, ast.ClassDef):
                continue
            order.append(one)
            for base in one.node.bases:
                found, name = self._base(one.module, base)
                if isinstance(found, Found) and found.is_class:
                    todo.append(found)
                else:
                    is_open |= name not in _NO_MEMBERS | _ENUMS
        return order, is_open

    def _base(self, module: str, base: ast.expr) -> tuple[Found | Module | None, str]:
        if isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Attribute):
            owner = self._base(module, base.value)[0]
            found = self.resolve(owner.name, base.attr) if isinstance(owner, Module) else None
            return found, base.attr
        name = base.id if isinstance(base, ast.Name) else ""
        return self.resolve(module, name), name

    def _member(self, cls: Found, name: str) -> Found | None:
        """Of a class or one before it: what its body binds, or a method sets on ``self``."""
        order, _ = self.bases(cls)
        for names_of in (self._in_body, self._on_self):
            for one in order:
                node = names_of(one).get(name)
                if node is not None:
                    return Found(one.module, node)
        return None

    def _body_names(self, cls: Found) -> dict[str, ast.AST]:
        assert isinstance(cls.node, ast.ClassDef)
        return names_in(cls.node.body)

    def _self_names(self, cls: Found) -> dict[str, ast.AST]:
        return set_on_self(cls.node)

    def has(self, cls: Found, name: str) -> bool:
        order, is_open = self.bases(cls)
        if is_open or self.member(cls, name) is not None or name.startswith("__"):
            return True
        names = {base for one in order for base in _base_names(one.node)}
        return bool(names & _ENUMS) and name in _OF_AN_ENUM

    def signature(self, found: Found) -> ast.arguments | None:
        """Of a function, or of what makes an object of a class; None: it is not to be seen."""
        if isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return found.node.args
        if not found.is_class:
            return None
        order, is_open = self.bases(found)
        marks = " ".join(ast.unparse(one) for one in getattr(found.node, "decorator_list", ()))
        made = self.member(found, "__init__")
        is_written = made is not None and ("dataclass" not in marks or made.node in found.node.body)  # type: ignore[attr-defined]
        if made is not None and is_written:
            return self.signature(made) if made.is_function else None
        fields = [name for one in reversed(order) for name in _fields(one.node)]
        if is_open or not fields:
            return None
        names = [ast.arg("self"), *(ast.arg(name) for name in dict.fromkeys(fields))]
        # Which of them have defaults is not looked at.
        return ast.arguments([], names, None, [], [], None, [ast.Constant(None) for _ in names])


def names_in(body: Iterable[ast.stmt]) -> dict[str, ast.AST]:
    """What each name of a module or class is bound by, first."""
    found: dict[str, ast.AST] = {}
    for child in statements(body):
        for name in _names(child):
            before = found.setdefault(name, child)
            # Imported for annotations only, and defined below: the definition counts.
            if isinstance(before, ast.Import | ast.ImportFrom) and not isinstance(
                child, ast.Import | ast.ImportFrom
            ):
                found[name] = child
    return found


def set_on_self(node: ast.AST) -> dict[str, ast.AST]:
    """Statements that set an attribute on ``self``, by its name."""
    return {
        target.attr: child
        for child in ast.walk(node)
        for target in targets(child)
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for child in body:
        yield child
        if isinstance(child, ast.If | ast.Try):
            for part in (child, *getattr(child, "handlers", ())):
                yield from statements(part.body)
            yield from statements(child.orelse)


def _names(child: ast.stmt) -> set[str]:
    if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {child.name}
    if isinstance(child, ast.Import):
        return {alias.asname or alias.name.partition(".")[0] for alias in child.names}
    if isinstance(child, ast.ImportFrom):
        return {alias.asname or alias.name for alias in child.names}
    return {target.id for target in targets(child) if isinstance(target, ast.Name)}


def targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.AnnAssign):
        return [node.target]
    found = node.targets if isinstance(node, ast.Assign) else []
    # a, b = c sets both.
    return [
        each
        for target in found
        for each in (target.elts if isinstance(target, ast.Tuple | ast.List) else [target])
    ]


def _base_names(node: ast.AST) -> Iterator[str]:
    for base in getattr(node, "bases", ()):
        yield base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")


def _fields(node: ast.AST) -> Iterator[str]:
    for child in getattr(node, "body", ()):
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id
