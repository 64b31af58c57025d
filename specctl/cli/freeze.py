"""``specctl freeze`` and ``specctl thaw``: set the key ``frozen`` of a policy file or targets file, and ask
the running daemon whether it took the file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from specctl.cli.options import POLICY
from specctl.errors import SpecctlError, TargetError
from specctl.http_client import HttpClient
from specctl.local_file import is_file, read_file
from specctl.plain_text import plain_text
from specctl.policy.loader import find_policy, parse_policy, shipped_policies
from specctl.targets.file import parse_targets
from specctl.terminal import examples, json_option, print_json, progress
from specctl.watch.views import FROZEN_ROUTE, FrozenFile, FrozenFiles
from specctl.yaml_text import Document

__all__ = ["EXIT_NOT_CONFIRMED", "freeze", "freeze_command", "thaw_command"]

EXIT_NOT_CONFIRMED = 5
FILE_MAX_BYTES = 4 * 1024 * 1024
CONFIRM_S = 15.0
ASK_AGAIN_S = 0.2
DAEMON = "http://127.0.0.1:9109"
_KEY = re.compile(r"^frozen[ \t]*:[ \t]*[^\s#]*", re.MULTILINE)
"""Without a comment behind it, which stays."""


def _shared(command: Callable[..., int]) -> Any:
    """What both commands take."""
    words = f"URL of the daemon's metrics port; default: {DAEMON}"
    file = click.argument("file", type=POLICY)
    daemon = click.option("--daemon", default=DAEMON, metavar="URL", help=words)
    return file(daemon(json_option()(command)))


@click.command(
    "freeze",
    epilog=examples(
        "specctl freeze policy.yaml", "specctl freeze targets.yaml --daemon http://127.0.0.1:9200"
    ),
)
@_shared
def freeze_command(file: str, daemon: str, as_json: bool) -> int:
    """Hold the tables of running servers as they are: nothing is changed, leases are renewed.

    FILE is the policy file or targets file of the daemon. Sets the key `frozen` in it, which the daemon reads
    within a second, and asks the daemon whether it did. Exit code 5: the file is changed, and no daemon
    confirmed it.
    """
    return freeze(file, is_frozen=True, daemon=daemon, as_json=as_json)


@click.command(
    "thaw",
    epilog=examples("specctl thaw policy.yaml", "specctl thaw policy.yaml --json"),
)
@_shared
def thaw_command(file: str, daemon: str, as_json: bool) -> int:
    """End a freeze.

    FILE is the policy file or targets file of the daemon. Clears the key `frozen` in it, which the daemon
    reads within a second, and asks the daemon whether it did. Exit code 5: the file is changed, and no daemon
    confirmed it.
    """
    return freeze(file, is_frozen=False, daemon=daemon, as_json=as_json)


def freeze(file: str, *, is_frozen: bool, daemon: str, as_json: bool = False) -> int:
    """A running daemon takes the file up within a second; ``daemon``: URL of its metrics port.

    Returns 0 when that daemon says that it did, else EXIT_NOT_CONFIRMED: the file is changed all the same.
    Raises SpecctlError; then nothing was written.
    """
    path = Path(file) if is_file(Path(file)) else find_policy(file)
    # A file that is mounted by a link is replaced where it lies.
    path = path.resolve()
    if path in {shipped.resolve() for shipped in shipped_policies()}:
        raise SpecctlError(f"{path}: comes with specctl and is not edited; run the daemon on a copy of it")
    try:
        text = read_file(path, SpecctlError, FILE_MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecctlError(f"{path}: not UTF-8") from error
    if _is_frozen(text, str(path)) != is_frozen:
        line = f"frozen: {str(is_frozen).lower()}"
        edited = _KEY.sub(line, text) if _KEY.search(text) else f"{text.rstrip()}\n{line}\n"
        if _is_frozen(edited, str(path), "; after adding the key, which it takes only by hand") != is_frozen:
            raise SpecctlError(f"{path}: the key frozen is not where it was expected; set it by hand")
        _write(path, edited)
    known, why = None, None
    try:
        with progress("asking the daemon"):
            known = asyncio.run(_confirmed(daemon, path, is_frozen))
    except TargetError as error:
        why = str(error)
    if as_json:
        targets = None if known is None else known.targets
        print_json(
            {"file": str(path), "frozen": is_frozen, "confirmed": why is None, "why": why, "targets": targets}
        )
    if known is None:
        words = f"{path}: frozen: {str(is_frozen).lower()} is written, but not confirmed: {why}"
        click.secho(words, err=True, fg="yellow")
        return EXIT_NOT_CONFIRMED
    if not as_json:
        word = "frozen" if is_frozen else "thawed"
        click.echo(f"{path}: {word}, as the daemon at {daemon} says ({known.targets} target(s))")
    return 0


async def _confirmed(daemon: str, path: Path, is_frozen: bool) -> FrozenFile:
    """Asks until the daemon has taken the file. Raises TargetError when it does not."""
    ends_s = time.monotonic() + CONFIRM_S
    async with HttpClient(daemon) as client:
        while True:
            known = next((one for one in await _files(client) if one.path == str(path)), None)
            if known is not None and known.refusal is not None:
                raise TargetError(f"the daemon at {daemon} refuses the file: {plain_text(known.refusal)}")
            if known is not None and known.frozen == is_frozen and not known.unsettled_targets:
                return known
            if time.monotonic() > ends_s:
                why = "has not taken it up" if known is not None else "does not use this file"
                raise TargetError(f"the daemon at {daemon} {why}")
            await asyncio.sleep(ASK_AGAIN_S)


async def _files(client: HttpClient) -> tuple[FrozenFile, ...]:
    """Raises TargetError."""
    response = await client.get(FROZEN_ROUTE)
    if response.status == 200:
        with contextlib.suppress(ValidationError):
            return FrozenFiles.model_validate_json(response.body).files
    raise TargetError(
        f"{client.target}{FROZEN_ROUTE}: HTTP {response.status}, no answer of a specctl daemon (--daemon URL)"
    )


def _is_frozen(text: str, source: str, hint: str = "") -> bool:
    """Raises PolicyError or TargetsError for a file that no daemon would take."""
    try:
        data = Document(text, source, SpecctlError, "the key kind (a policy) or targets").data
        if "targets" in data:
            return parse_targets(text, source).frozen
        return parse_policy(text, source).frozen
    except SpecctlError as error:
        raise type(error)(f"{error}{hint}") from error


def _write(path: Path, text: str) -> None:
    """Owner and mode stay. Whole or not at all, where the folder allows it: a daemon may read at any time."""
    try:
        before = path.stat()
        try:
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        except PermissionError:
            _write_in_place(path, text)
            return
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                # The owner first: a change of it takes bits of the mode away.
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(handle, before.st_uid, before.st_gid)
                os.fchmod(handle, stat.S_IMODE(before.st_mode))
                os.fsync(handle)
            os.replace(name, path)
        except PermissionError:
            # Somebody else's file that may be written: a new one in its place would be ours.
            os.unlink(name)
            _write_in_place(path, text)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise SpecctlError(f"{path}: {error.strerror or error}") from error


def _write_in_place(path: Path, text: str) -> None:
    with path.open("r+", encoding="utf-8") as file:
        file.write(text)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
