"""Puts patches in force by SGLang's own hook registry, and looks afterwards whether they are.

The registry wraps its targets once every plugin was loaded, and only logs what fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from specctl.engine.patches import Patch, PatchConflict, find, install

__all__ = ["in_force", "now", "register", "why_not_in_force"]

_registered: dict[str, tuple[Patch, Any]] = {}
"""By target, with what was there before."""


def register(patches: Iterable[Patch]) -> None:
    """All or none. Raises PatchConflict, AttributeError or ImportError before anything is changed."""
    new = [patch for patch in patches if patch.target not in _registered]
    for patch in new:
        for kind, hook, _ in HookRegistry._hooks.get(_dotted(patch), ()):
            if kind is HookType.REPLACE:
                raise PatchConflict(f"{patch.target} is replaced by {hook.__module__}")
    install(new, put=_put)


def now(patches: Iterable[Patch]) -> None:
    """The same once plugins were loaded; raises PatchConflict where one is not in force then."""
    register(patches)
    HookRegistry.apply_hooks()
    problem = why_not_in_force()
    if problem is not None:
        raise PatchConflict(problem)


def in_force() -> list[str]:
    return [target for target, (patch, before) in _registered.items() if find(patch) is not before]


def why_not_in_force() -> str | None:
    """None: every patch that was registered is there, and nobody replaced what it wraps."""
    missing = sorted(set(_registered) - set(in_force()))
    if missing:
        return f"SGLang did not put in force {', '.join(missing)}"
    for patch, _ in _registered.values():
        kinds = [kind for kind, *_ in HookRegistry._hooks[_dotted(patch)]]
        if kinds.count(HookType.REPLACE) > isinstance(find(patch), type):
            return f"{patch.target} is replaced by another plugin"
    return None


def _put(patch: Patch, original: Any) -> None:
    _registered[patch.target] = patch, find(patch)
    if isinstance(original, type):
        HookRegistry.register(_dotted(patch), patch.wrap(original), HookType.REPLACE)
        return
    wrapped: dict[Any, Any] = {}

    def around(found: Any, *args: Any, **kwargs: Any) -> Any:
        ours = wrapped.get(found)
        if ours is None:
            ours = wrapped[found] = patch.wrap(found)
        return ours(*args, **kwargs)

    HookRegistry.register(_dotted(patch), around, HookType.AROUND)


def _dotted(patch: Patch) -> str:
    return patch.target.replace(":", ".")
