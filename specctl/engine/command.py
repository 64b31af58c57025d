"""``specctl patches ENGINE``: what the plugin changes in an engine, and why."""

from __future__ import annotations

import importlib
import json
import textwrap
from collections.abc import Iterable

import click

from specctl.engine.patches import Patch
from specctl.errors import SpecctlError
from specctl.terminal import examples, json_option

__all__ = ["patches"]

_PLUGINS = {"vllm": "specctl_vllm", "sglang": "specctl_sglang"}


@click.command(epilog=examples("specctl patches vllm", "specctl patches sglang --json"))
@click.argument("engine", type=click.Choice(sorted(_PLUGINS)))
@json_option("a list of objects")
def patches(engine: str, as_json: bool) -> int:
    """Print what the plugin changes in an engine.

    For each attribute: why, where the engine's project discusses it, and what makes the change unnecessary. A
    running server lists those in force under /specctl/v1/capabilities.
    """
    try:
        plugin = importlib.import_module(f"{_PLUGINS[engine]}.patches")
    except ImportError as error:
        raise SpecctlError(f"the plugin for {engine} cannot be read: {error}") from error
    listed: tuple[Patch, ...] = plugin.PATCHES
    click.echo(_as_json(listed) if as_json else _as_text(listed))
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
