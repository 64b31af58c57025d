"""Whether one function can stand in the place of another, and whether a call fits a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator

__all__ = ["not_taken", "wrongly_passed"]


def not_taken(ours: ast.arguments, theirs: ast.arguments, *, is_bound: bool) -> Iterator[str]:
    """What callers of ``theirs`` may pass, and ``ours`` does not take; and what ours wants beside it.

    is_bound: both get their first argument by themselves.
    """
    own, known = _positional(ours)[is_bound:], _positional(theirs)[is_bound:]
    by_name = {*own, *(one.arg for one in ours.kwonlyargs)} - {one.arg for one in ours.posonlyargs}
    positional_only = {one.arg for one in theirs.posonlyargs}
    for place, name in enumerate(known):
        if name not in by_name and ours.kwarg is None and name not in positional_only:
            yield f"called with {name}=, which ours does not take"
        elif place < len(own) and own[place] != name and name in own:
            yield f"{name} is argument {place + 1} there, and another one of ours"
        elif place >= len(own) and ours.vararg is None and name not in by_name and name in positional_only:
            yield f"called with {name}, which ours does not take"
    for one in theirs.kwonlyargs:
        if one.arg not in by_name and ours.kwarg is None:
            yield f"called with {one.arg}=, which ours does not take"
    given = {*known, *(one.arg for one in theirs.kwonlyargs)}
    required = own[: max(0, len(own) - len(ours.defaults))]
    if theirs.vararg is None and theirs.kwarg is None:
        for name in required[len(known) :]:
            if name not in given:
                yield f"called without {name}, which ours needs"


def wrongly_passed(call: ast.Call, theirs: ast.arguments, *, is_bound: bool) -> Iterator[str]:
    """Arguments of a call that a function does not take, and those that it needs and does not get."""
    places = _positional(theirs)[is_bound:]
    names = {*places, *(one.arg for one in theirs.kwonlyargs)} - {one.arg for one in theirs.posonlyargs}
    is_open = any(isinstance(one, ast.Starred) for one in call.args)
    passed = {keyword.arg for keyword in call.keywords}
    is_open |= None in passed
    for name in sorted(filter(None, passed)):
        if name not in names and theirs.kwarg is None:
            yield f"there is no argument {name}"
    if is_open:
        return
    if len(call.args) > len(places) and theirs.vararg is None:
        yield f"takes {len(places)} arguments, gets {len(call.args)}"
    required = places[: max(0, len(places) - len(theirs.defaults))]
    keywords = zip(theirs.kwonlyargs, theirs.kw_defaults, strict=True)
    needed = [*required[len(call.args) :], *(one.arg for one, default in keywords if default is None)]
    for name in needed:
        if name not in passed:
            yield f"needs {name}"


def _positional(arguments: ast.arguments) -> list[str]:
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
