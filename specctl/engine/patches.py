"""What a plugin changes in its engine, as data: one list, installed once, checked, reported.

A plugin has no other way to change its engine. The same list is printed by ``specctl patches ENGINE``, stands
in the capabilities, and tells a test which entries to fail on a real server.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Patch", "PatchConflict", "Process", "check_conflicts", "find", "imported", "install", "is_ours"]

Process = Literal["command line", "server", "engine", "worker"]
"""Where a patch applies: the process that reads the command line, the one with the HTTP server, the one with
the scheduler, the ones that run the model. One process may be several of them."""

_ORIGINAL = "__specctl_original__"
_DECORATORS = frozenset({"torch", "contextlib", "functools"})
"""Packages whose decorators an engine's own functions carry."""


class PatchConflict(Exception):
    """Something else has already replaced what a patch would wrap."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One attribute of the engine that is replaced by a wrapper of it.

    ``wrap`` gets the original (None where ``adds``) and returns what takes its place.
    """

    target: str
    """``package.module:Class.attribute`` or ``package.module:attribute``."""
    wrap: Callable[[Any], Any]
    process: Process
    why: str
    """One sentence: what the engine lacks for which this is needed."""
    upstream: str
    """Address of the thread where the engine's project discusses it, or ``none`` and why."""
    until: str
    """What has to be true of the engine so that this patch can go."""
    methods: frozenset[str] = frozenset()
    """The methods (specctl's or the engine's names) that need it; empty: all."""
    adds: bool = False
    """The attribute is new: nothing of the engine's is replaced."""
    entries: tuple[str, ...] = ()
    """What of it steps and requests call, by its names in the guard's counters; empty: the start alone."""

    @property
    def entry(self) -> str:
        """Its name in the guard's counters and in the log."""
        return self.target.partition(":")[2]

    def serves(self, method: str) -> bool:
        return not self.methods or method in self.methods


def install(patches: Iterable[Patch], put: Callable[[Patch, Any], None] | None = None) -> list[str]:
    """Put each in force that is not yet; returns the targets that are new.

    put: an engine's own way to wrap an attribute, called with a patch and what is there now.

    All or none: every target is looked up before the first is replaced. Raises AttributeError or ImportError
    for a target that is not there, and PatchConflict for one that another plugin has replaced.
    """
    pending: list[tuple[Patch, Any, str, Any]] = []
    for patch in patches:
        owner, name = _owner(patch.target)
        found = owner.__dict__.get(name) if isinstance(owner, type) else getattr(owner, name, None)
        if patch.adds:
            if found is None:
                pending.append((patch, owner, name, None))
            elif not is_ours(found):
                raise PatchConflict(f"{patch.target} exists already")
            continue
        original = getattr(owner, name)
        if is_ours(original):
            continue
        _check_is_the_engines(patch.target, owner, original)
        # A class that inherits the attribute gets one of its own, so that its base stays as it is.
        pending.append((patch, owner, name, original if found is None else found))
    for patch, owner, name, original in pending:
        kind = type(original) if isinstance(original, staticmethod | classmethod) else None
        inner: Any = original if kind is None else original.__func__
        if put is not None:
            put(patch, inner)
            continue
        replacement = patch.wrap(inner)
        setattr(replacement, _ORIGINAL, inner)
        setattr(owner, name, replacement if kind is None else kind(replacement))
    return [patch.target for patch, *_ in pending]


def check_conflicts(patches: Iterable[Patch]) -> None:
    """Raises PatchConflict for a target that another plugin has replaced, of modules that are imported:
    whoever replaces a function has imported its module."""
    for patch in patches:
        if patch.adds or patch.target.partition(":")[0] not in sys.modules:
            continue
        owner, name = _owner(patch.target)
        original = getattr(owner, name, None)
        if original is not None and not is_ours(original):
            _check_is_the_engines(patch.target, owner, original)


def find(patch: Patch) -> Any:
    """What is at the patch's target now. Raises AttributeError or ImportError where there is nothing."""
    owner, name = _owner(patch.target)
    return getattr(owner, name)


def is_ours(attribute: Any) -> bool:
    return hasattr(attribute, _ORIGINAL)


@dataclass(frozen=True, slots=True)
class imported:
    """A wrapper by its name: its module is imported once it is needed, so that a list of patches can be read
    without the engine."""

    module: str
    name: str

    def __call__(self, original: Any) -> Any:
        return getattr(importlib.import_module(self.module), self.name)(original)


def _owner(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    *classes, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for one in classes:
        owner = getattr(owner, one)
    return owner, name


def _check_is_the_engines(target: str, owner: Any, original: Any) -> None:
    """A function of another package in the engine's place is another plugin's patch."""
    package = target.partition(":")[0].partition(".")[0]
    module = getattr(original, "__module__", None)
    code = getattr(original, "__code__", None)
    # functools.wraps copies __module__; the code's own globals tell who wrote it.
    wrote = getattr(original, "__globals__", {}).get("__name__", module) if code is not None else module
    for name in (module, wrote):
        if name and name.partition(".")[0] not in _DECORATORS | {package}:
            raise PatchConflict(f"{target} has been replaced by {name}")
