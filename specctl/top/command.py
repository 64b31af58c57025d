"""``specctl top``: servers live in a terminal."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import click

from specctl.errors import SpecctlError, TargetError, install_words
from specctl.http_client import read_token
from specctl.policy.loader import find_policy
from specctl.terminal import examples, has_terminal

__all__ = ["top"]

DAEMON = "http://127.0.0.1:9109"
_NO_DAEMON = "start specctl autotune, or name servers: specctl top http://localhost:8000"


@click.command(
    epilog=examples(
        "specctl top",
        "specctl top --daemon http://controller:9109 --token-file token",
        "specctl top http://localhost:8000 http://localhost:8001",
    )
)
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option(
    "--daemon", default=DAEMON, metavar="URL", help=f"URL of the daemon's metrics port; default: {DAEMON}"
)
@click.option(
    "--policy",
    default="balanced",
    metavar="FILE",
    help="with TARGET: policy whose decisions are shown; a file or a shipped one's name; default: balanced",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="bearer token: of the daemon's page (control scope for changes), or of the servers (read scope)",
)
def top(targets: tuple[str, ...], daemon: str, policy: str, token_file: Path | None) -> int:
    """A live view of the servers of a running daemon, or of each TARGET.

    Keys: enter details, f freeze, o off, d dry run, r resume, q quit. Changes need a control token.
    A TARGET is polled from here, and nothing is changed on it.
    """
    try:
        from specctl.top.app import TopApp
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("textual"):
            raise
        raise SpecctlError(f"specctl top needs the package textual; {install_words('top')}") from error
    token = None if token_file is None else read_token(token_file)
    # The screen is the view's; what would be logged is among the events.
    log = logging.getLogger("specctl")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        asyncio.run(_run(TopApp, targets, daemon, policy, token))
    finally:
        log.setLevel(level)
    return 0


async def _run(app: type, targets: tuple[str, ...], daemon: str, policy: str, token: str | None) -> None:
    from specctl.top.sources import DaemonSource, ServersSource, Source

    source: Source = (
        ServersSource(targets, token, find_policy(policy)) if targets else DaemonSource(daemon, token)
    )
    try:
        # What is wrong at once is said at once.
        try:
            await source.overview()
        except TargetError as error:
            raise error if targets else TargetError(f"{error}\n{_NO_DAEMON}") from error
        if not (has_terminal() and sys.stdin is not None and sys.stdin.isatty()):
            # Nobody could end it there.
            raise SpecctlError("specctl top needs a terminal; specctl status prints what a server does now")
        await app(source).run_async()
    finally:
        await source.close()


if __name__ == "__main__":
    top()
