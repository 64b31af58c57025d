"""What one file of a plugin's does with its engine's objects: attributes, and calls of functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from specctl.engine.engine_source import Found, Module
from specctl.engine.signatures import wrongly_passed

if TYPE_CHECKING:
    from specctl.engine.engine_check import Check, OwnClass, SourceFile

__all__ = ["Uses"]

Type = Module | tuple[Found, ...]
"""What an expression is: a module of the engine's, or an object of one of these classes."""


class Uses(ast.NodeVisitor):
    """Attributes of the engine's objects in one file, and calls of the engine's functions."""

    def __init__(self, check: Check, file: SourceFile) -> None:
        self._check, self._file = check, file
        self._inside: list[OwnClass] = []
        self._hidden: list[set[str]] = [set()]
        """Parameters that have a type of their own."""
        self._patched: tuple[Found, ...] | None = None
        """What ``self`` is in a wrapper."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside.append(self._check.classes[self._file.module, node.name])
        self.generic_visit(node)
        self._inside.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        typed = {one.arg for one in arguments if one.annotation and ast.unparse(one.annotation) != "Any"}
        self._hidden.append(self._hidden[-1] | typed)
        outer = self._patched
        self._patched = self._check.wrapped.get((self._file.module, node.name), outer)
        self.generic_visit(node)
        self._hidden.pop()
        self._patched = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if node.attr.startswith(("specctl", "__")):
            return
        if isinstance(node.value, ast.Name) and node.value.id == "self" and self._inside:
            lacking = self._check.lacks(self._inside[-1], node.attr)
            if lacking:
                self._say(f"{node.attr} not found behind {lacking}")
            return
        owner = self._type(node.value)
        if owner is None:
            return
        if isinstance(owner, Module):
            if self._check.sources.resolve(owner.name, node.attr) is None:
                self._say(f"{owner.name}.{node.attr} not found")
        elif not self._check.has(owner, node.attr):
            self._say(f"{_words(owner)}.{node.attr} not found")

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        found, is_bound = self._called(node.func)
        arguments = None if found is None else self._check.sources.signature(found)
        if found is None or arguments is None:
            return
        for wrong in wrongly_passed(node, arguments, is_bound=is_bound):
            self._say(f"{found.module}.{ast.unparse(node.func)}: {wrong}")

    def _called(self, func: ast.expr) -> tuple[Found | None, bool]:
        """The engine's function or class, and whether it gets its first argument by itself."""
        if isinstance(func, ast.Name):
            found = self._bound(func.id)
            return (found, found.is_class) if isinstance(found, Found) else (None, False)
        if not isinstance(func, ast.Attribute):
            return None, False
        if _is_super(func.value) and self._inside:
            found = self._check.member(self._check.self_types(self._inside[-1]), func.attr)
            return found, True
        owner = self._type(func.value)
        if isinstance(owner, Module):
            found = self._check.sources.resolve(owner.name, func.attr)
            return (found, found.is_class) if isinstance(found, Found) else (None, False)
        if owner is None or self._is_own(func):
            return None, False
        found = self._check.member(owner, func.attr)
        return (None, False) if found is None else _bound_member(found, self._is_class(func.value))

    def _is_class(self, value: ast.expr) -> bool:
        found = self._bound(value.id) if isinstance(value, ast.Name) else None
        return isinstance(found, Found) and found.is_class

    def _is_own(self, node: ast.Attribute) -> bool:
        is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
        return is_self and bool(self._inside) and self._check.is_own(self._inside[-1], node.attr)

    def _bound(self, name: str) -> Found | Module | None:
        module, original = self._file.bound.get(name, ("", ""))
        if module.partition(".")[0] != self._check.adapter.package:
            return None
        return self._check.named(module, original)

    def _type(self, value: ast.expr) -> Type | None:
        if isinstance(value, ast.Name):
            if value.id == "self":
                return (self._check.self_types(self._inside[-1]) or None) if self._inside else self._patched
            found = self._bound(value.id)
            if found is not None:
                is_class = isinstance(found, Found) and found.is_class
                return (found,) if is_class and isinstance(found, Found) else _module(found)
            return None if value.id in self._hidden[-1] else self._objects(value.id)
        if isinstance(value, ast.Attribute):
            owner = self._type(value.value)
            if isinstance(owner, Module):
                return _module(self._check.sources.resolve(owner.name, value.attr))
            return self._objects(value.attr)
        return None

    def _objects(self, name: str) -> tuple[Found, ...] | None:
        """Its classes; None: nothing is said of the name."""
        named = self._check.adapter.objects.get(name)
        if named is None:
            return None
        found = [self._check.find(one) for one in named]
        if not any(found):
            self._say(f"{' or '.join(named)} not found")
        return tuple(one for one in found if one is not None) or None

    def _say(self, words: str) -> None:
        self._check.say(words, self._file.methods)


def _module(found: Found | Module | None) -> Module | None:
    return found if isinstance(found, Module) else None


def _bound_member(found: Found, is_of_class: bool) -> tuple[Found | None, bool]:
    """A function in a class, unless it is a property: whether it gets its first argument by itself."""
    if not isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None, False
    marks = {ast.unparse(one) for one in found.node.decorator_list}
    if marks & {"property", "cached_property", "functools.cached_property"}:
        return None, False
    return found, "staticmethod" not in marks and (not is_of_class or "classmethod" in marks)


def _is_super(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"


def _words(owner: tuple[Found, ...]) -> str:
    return " or ".join(f"{one.module}.{getattr(one.node, 'name', '')}" for one in owner)
