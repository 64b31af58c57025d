"""Which methods of ours do not take what SGLang's own of that name take; run by SGLang's Python."""

import importlib
import inspect
import json
import pkgutil
import sys
from pathlib import Path

import specctl_sglang.cpu_serve  # noqa: F401  (the stand-ins have to be there before SGLang)
from specctl_sglang import compat

KINDS = inspect.Parameter


def lacking(ours, theirs):
    """Parameters of ``theirs`` that a caller may pass and ``ours`` does not take."""
    have, want = (inspect.signature(one).parameters for one in (ours, theirs))
    kinds = {one.kind for one in have.values()}
    if KINDS.VAR_KEYWORD in kinds and KINDS.VAR_POSITIONAL in kinds:
        return []
    named = [
        name for name, one in have.items() if one.kind in (KINDS.POSITIONAL_OR_KEYWORD, KINDS.KEYWORD_ONLY)
    ]
    variadic = (KINDS.VAR_KEYWORD, KINDS.VAR_POSITIONAL)
    return [
        name
        for name, one in list(want.items())[1:]
        if one.kind not in variadic and name not in named and KINDS.VAR_KEYWORD not in kinds
    ]


def overridden(cls):
    """(name, ours, SGLang's) of each method of ours that goes before one of SGLang's."""
    for name in {name for base in cls.__mro__ for name in vars(base)} - {"__init__"}:
        holders = [base for base in cls.__mro__ if name in vars(base)]
        found = [(base.__module__.partition(".")[0], vars(base)[name]) for base in holders]
        theirs = next((one for package, one in found if package == "sglang"), None)
        package, ours = found[0]
        if package == "specctl_sglang" and inspect.isfunction(ours) and inspect.isfunction(theirs):
            yield name, ours, theirs


def main(out):
    problems, compared = [], []
    for module in pkgutil.iter_modules(compat.__path__):
        made = importlib.import_module(f"specctl_sglang.compat.{module.name}")
        for cls in vars(made).values():
            if not (inspect.isclass(cls) and cls.__module__ == made.__name__):
                continue
            for name, ours, theirs in overridden(cls):
                compared.append(f"{cls.__name__}.{name}")
                problems += [f"{compared[-1]}: {one}" for one in lacking(ours, theirs)]
    Path(out).write_text(json.dumps({"compared": compared, "problems": problems}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1])["out"])
