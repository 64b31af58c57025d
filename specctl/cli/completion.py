"""``specctl completion SHELL``."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from specctl.terminal import examples

__all__ = ["completion"]

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(
    epilog=examples(
        "specctl completion bash > ~/.local/share/bash-completion/completions/specctl",
        'eval "$(specctl completion zsh)"',
        "specctl completion fish > ~/.config/fish/completions/specctl.fish",
    )
)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def completion(shell: str) -> int:
    """Print the script that completes commands, options and names of policies in a shell."""
    program = click.get_current_context().find_root()
    name = program.info_name or "specctl"
    click.echo(_SHELLS[shell](program.command, {}, name, "_SPECCTL_COMPLETE").source())
    return 0
