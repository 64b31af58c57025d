"""Whether an engine is as a plugin expects it, derived from the sources of both.

Checked are, of the plugin's own source: what it imports from the engine, the targets of its patches, the
attributes that it reads and writes on the engine's objects, the arguments that it passes, and that each
override and wrapper takes every argument that the engine's own function takes.

The one thing that sources do not tell is which variable is which of the engine's objects: an ``Adapter`` says
so by name, as one name means one thing in all of a plugin.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specctl.engine.engine_source import Found, Module, Sources, installed_root, names_in, set_on_self
from specctl.engine.engine_uses import Uses
from specctl.engine.patches import Patch
from specctl.engine.signatures import not_taken

__all__ = ["Adapter", "Problem", "problems_of", "relied_on"]


@dataclass(frozen=True)
class Adapter:
    package: str
    """The engine's: ``vllm``, ``sglang``."""
    plugin: str
    """Its own package."""
    folder: Path
    patches: Sequence[Patch]
    objects: Mapping[str, Sequence[str]]
    """By the name of a variable or attribute, the engine's classes (``module:Class``) that it is one of, or
    ours that stand in their place."""
    joined: Mapping[str, str]
    """Classes of ours that get a class of the engine's behind them while the engine runs."""
    methods: Mapping[str, frozenset[str]]
    """By file, the methods that need it; a file that is not named is needed by all."""
    unchecked: frozenset[str] = frozenset()
    """Files that tell releases apart, or are run by hand: nothing is taken from them."""


@dataclass(frozen=True)
class Problem:
    words: str
    methods: frozenset[str] = frozenset()
    """That it takes away; empty: all."""

    def concerns(self, method: str) -> bool:
        return not self.methods or method in self.methods


@dataclass
class OwnClass:
    """One of the plugin's own."""

    node: ast.ClassDef
    file: SourceFile
    ours: list[OwnClass] = field(default_factory=list)
    """Itself and those of ours before it."""
    theirs: list[Found] = field(default_factory=list)

    names: frozenset[str] = frozenset()
    """That its body binds, or a method sets."""

    def defines(self, name: str) -> bool:
        return any(name in one.names for one in self.ours)


@dataclass
class SourceFile:
    path: Path
    module: str
    tree: ast.Module
    methods: frozenset[str]
    bound: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Names that are imported from the engine or from this plugin: module, and name there or nothing."""


def problems_of(adapter: Adapter, root: Path | None = None) -> list[Problem]:
    """In the order of files; empty: all is well. root: the folder that holds the engine's package; None: the
    installed one."""
    return Check(adapter, root).problems


def relied_on(adapter: Adapter, root: Path) -> dict[str, Found]:
    """The engine's functions that a plugin patches or overrides, by ``module:Class.name``."""
    return Check(adapter, root).replaced


class Check:
    def __init__(self, adapter: Adapter, root: Path | None) -> None:
        self.adapter = adapter
        root = root or installed_root(adapter.package)
        self.problems: list[Problem] = []
        self.replaced: dict[str, Found] = {}
        self.wrapped: dict[tuple[str, str], tuple[Found, ...]] = {}
        """The class that a wrapper's function is a method of."""
        if root is None:
            self.problems.append(Problem(f"{adapter.package} is not installed"))
            return
        self.sources = Sources(adapter.package, root)
        files = list(_files(adapter))
        self.files = {file.module: file for file in files}
        self.classes = {
            (file.module, node.name): OwnClass(
                node, file, names=frozenset({*names_in(_bound(node.body)), *set_on_self(node)})
            )
            for file in files
            for node in ast.walk(file.tree)
            if isinstance(node, ast.ClassDef)
        }
        for file in files:
            self._check_imports(file)
        for one in self.classes.values():
            self._find_bases(one)
        for patch in adapter.patches:
            self._check_patch(patch)
        for one in self.classes.values():
            self._check_overrides(one)
        for file in files:
            Uses(self, file).visit(file.tree)
        self.problems = list(dict.fromkeys(self.problems))
        self.problems += [Problem(words) for words in self.sources.problems.values()]

    def say(self, words: str, methods: frozenset[str]) -> None:
        self.problems.append(Problem(words, methods))

    def _check_imports(self, file: SourceFile) -> None:
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            source = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                module = source or alias.name
                package = module.partition(".")[0]
                if package not in (self.adapter.package, self.adapter.plugin):
                    continue
                name = alias.name if source else ""
                # ``import a.b`` without ``as`` binds the package, whose name starts every chain.
                local = alias.asname or (alias.name if source else package)
                file.bound[local] = (module if source or alias.asname else package), name
                if package == self.adapter.package and self.named(module, name) is None:
                    self.say(f"{'.'.join(filter(None, (module, name)))} not found", file.methods)

    def named(self, module: str, name: str) -> Found | Module | None:
        if name:
            return self.sources.resolve(module, name)
        return Module(module) if self.sources.path(module) is not None else None

    def _find_bases(self, one: OwnClass) -> None:
        one.ours, one.theirs = [one], []
        joined = self.adapter.joined.get(one.node.name)
        if joined is not None:
            self._add_theirs(one, self.sources.find(joined))
        for base in one.node.bases:
            if not isinstance(base, ast.Name | ast.Subscript):
                continue
            name = ast.unparse(base).partition("[")[0]
            module, original = one.file.bound.get(name, (one.file.module, name))
            ours = self.classes.get((module, original or name))
            if ours is not None and ours is not one:
                if not ours.ours:
                    self._find_bases(ours)
                one.ours += ours.ours
                one.theirs += [found for found in ours.theirs if found not in one.theirs]
            elif module.partition(".")[0] == self.adapter.package:
                self._add_theirs(one, self.sources.resolve(module, original))

    def _add_theirs(self, one: OwnClass, found: Found | Module | None) -> None:
        if isinstance(found, Found) and found.is_class and found not in one.theirs:
            one.theirs.append(found)

    def member(self, types: Iterable[Found], name: str) -> Found | None:
        return next((found for one in types if (found := self.sources.member(one, name)) is not None), None)

    def has(self, types: Iterable[Found], name: str) -> bool:
        return any(self._has(one, name) for one in types)

    def _has(self, one: Found, name: str) -> bool:
        ours = self.classes.get((one.module, getattr(one.node, "name", "")))
        return self.sources.has(one, name) if ours is None else self.is_own(ours, name)

    def find(self, target: str) -> Found | None:
        """A class of the engine's, or of ours."""
        module, _, name = target.partition(":")
        ours = self.classes.get((module, name))
        found = self.sources.find(target) if ours is None else Found(module, ours.node)
        return found if isinstance(found, Found) else None

    def _check_patch(self, patch: Patch) -> None:
        methods = patch.methods
        if patch.adds:
            owner = self.sources.find(patch.target.rpartition(".")[0])
            if owner is None:
                self.say(f"{patch.target.rpartition('.')[0]} not found", methods)
            return
        found = self.sources.find(patch.target)
        if not isinstance(found, Found):
            self.say(f"{patch.target} not found", methods)
            return
        self.replaced[patch.target] = found
        owner = self.sources.find(patch.target.rpartition(".")[0])
        if isinstance(owner, Found) and owner.is_class:
            wrap = patch.wrap
            self.wrapped[getattr(wrap, "module", ""), getattr(wrap, "name", "")] = (owner,)
        ours = self._wrapper(patch)
        theirs = self.sources.signature(found)
        if ours is None or theirs is None:
            return
        for lack in not_taken(ours, theirs, is_bound="." in patch.entry or found.is_class):
            self.say(f"{patch.target}: {lack}", methods)

    def _wrapper(self, patch: Patch) -> ast.arguments | None:
        """Of what a wrapper returns: a function, or the constructor of a class."""
        module, name = getattr(patch.wrap, "module", ""), getattr(patch.wrap, "name", "")
        file = self.files.get(module)
        outer = None if file is None else names_in(file.tree.body).get(name)
        if not isinstance(outer, ast.FunctionDef):
            return None
        last = outer.body[-1]
        returned = last.value.id if isinstance(last, ast.Return) and isinstance(last.value, ast.Name) else ""
        inner = names_in(outer.body).get(returned)
        if isinstance(inner, ast.ClassDef):
            inner = names_in(inner.body).get("__init__")
        return inner.args if isinstance(inner, ast.FunctionDef) else None

    def _check_overrides(self, one: OwnClass) -> None:
        for child in one.node.body:
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or child.name == "__init__":
                continue
            found = self.member(self._behind(one), child.name)
            if found is None or not found.is_function:
                continue
            assert isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef)
            target = f"{found.module}:{self._owner(one, child.name)}.{child.name}"
            self.replaced[target] = found
            for lack in not_taken(child.args, found.node.args, is_bound=True):
                self.say(f"{target}: {lack}", one.file.methods)

    def _behind(self, one: OwnClass) -> list[Found]:
        """The engine's classes behind it, and behind those that are derived from it."""
        return list(dict.fromkeys(found for user in self.users(one) for found in user.theirs))

    def users(self, one: OwnClass) -> list[OwnClass]:
        """Classes of ours that are one, and that none is derived from."""
        found = [each for each in self.classes.values() if one in each.ours]
        return [each for each in found if not any(each in other.ours[1:] for other in found)]

    def _owner(self, one: OwnClass, name: str) -> str:
        for cls in self._behind(one):
            for base in self.sources.bases(cls)[0]:
                if isinstance(base.node, ast.ClassDef) and name in names_in(base.node.body):
                    return base.node.name
        return ""

    def self_types(self, one: OwnClass) -> tuple[Found, ...]:
        return tuple(self._behind(one))

    def lacks(self, one: OwnClass, name: str) -> str:
        """A class of ours that has no such attribute, of itself or of the engine's; "": all have."""
        for user in self.users(one):
            if user.theirs and not (user.defines(name) or self.has(user.theirs, name)):
                return user.node.name
        return ""

    def is_own(self, one: OwnClass, name: str) -> bool:
        return any(user.defines(name) for user in self.users(one))


def _files(adapter: Adapter) -> Iterator[SourceFile]:
    for path in sorted(adapter.folder.rglob("*.py")):
        name = path.relative_to(adapter.folder).with_suffix("").as_posix()
        if name in adapter.unchecked:
            continue
        module = ".".join([adapter.plugin, *(part for part in name.split("/") if part != "__init__")])
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield SourceFile(path, module, tree, adapter.methods.get(name, frozenset()))


def _bound(body: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Without what is only given a type: that is the engine's."""
    return [one for one in body if not (isinstance(one, ast.AnnAssign) and one.value is None)]
