"""Types and options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

__all__ = ["FILE", "POLICY", "token_file_option"]

FILE = click.Path(path_type=Path)
"""Whether it is there is for the command to say: it also says what is wrong with it."""


class PolicyName(click.ParamType[str]):
    """A file, or the bare name of a shipped policy."""

    name = "policy"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from specctl.policy.loader import shipped_policies

        names = [path.stem for path in shipped_policies() if path.stem.startswith(incomplete)]
        return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]


POLICY = PolicyName()


def token_file_option(scope: str) -> Callable[[Any], Any]:
    """``scope``: of the token that the command needs."""
    return click.option(
        "--token-file", type=FILE, metavar="FILE", help=f"bearer token with the {scope} scope"
    )
