"""``specctl patches ENGINE``: what the plugin changes in an engine, and why."""

from __future__ import annotations

import argparse
import importlib
import json
import textwrap
from collections.abc import Iterable

from specctl.engine.patches import Patch
from specctl.errors import SpecctlError

__all__ = ["add_arguments", "run"]

_PLUGINS = {"vllm": "specctl_vllm", "sglang": "specctl_sglang"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What the plugin changes in an engine: each attribute, why, where the engine's project discusses it, "
        "and what makes the change unnecessary. A running server lists those in force under "
        "/specctl/v1/capabilities."
    )
    parser.add_argument("engine", choices=sorted(_PLUGINS))
    parser.add_argument("--json", action="store_true", help="a list of objects")


def run(options: argparse.Namespace) -> int:
    try:
        plugin = importlib.import_module(f"{_PLUGINS[options.engine]}.patches")
    except ImportError as error:
        raise SpecctlError(f"the plugin for {options.engine} cannot be read: {error}") from error
    patches: tuple[Patch, ...] = plugin.PATCHES
    print(_as_json(patches) if options.json else _as_text(patches))
    return 0


def _as_json(patches: Iterable[Patch]) -> str:
    fields = "target", "process", "why", "upstream", "until"
    return json.dumps(
        [
            {name: getattr(patch, name) for name in fields} | {"methods": sorted(patch.methods)}
            for patch in patches
        ],
        indent=2,
    )


def _as_text(patches: Iterable[Patch]) -> str:
    blocks = []
    for patch in patches:
        methods = ", ".join(sorted(patch.methods)) or "all methods"
        lines = [
            f"{patch.target}{' (new)' if patch.adds else ''}",
            f"  process   {patch.process}; {methods}",
            *_folded("why", patch.why),
            *_folded("upstream", patch.upstream),
            *_folded("until", patch.until),
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _folded(name: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        width=100,
        initial_indent=f"  {name:<10}",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )
