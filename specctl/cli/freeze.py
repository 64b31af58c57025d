"""``specctl freeze`` and ``specctl thaw``: set the key ``frozen`` of a policy file or targets file, and ask
the running daemon whether it took the file."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import stat
import sys
import tempfile
import time
from pathlib import Path

from pydantic import ValidationError

from specctl.errors import SpecctlError, TargetError
from specctl.frozen_files import FROZEN_ROUTE, FrozenFile, FrozenFiles
from specctl.http_client import HttpClient
from specctl.local_file import is_file, read_file
from specctl.plain_text import plain_text
from specctl.policy.loader import find_policy, parse_policy, shipped_policies
from specctl.targets.file import parse_targets
from specctl.yaml_text import Document

__all__ = ["EXIT_NOT_CONFIRMED", "add_arguments", "freeze", "run"]

EXIT_NOT_CONFIRMED = 5
FILE_MAX_BYTES = 4 * 1024 * 1024
CONFIRM_S = 15.0
ASK_AGAIN_S = 0.2
DAEMON = "http://127.0.0.1:9109"
_KEY = re.compile(r"^frozen[ \t]*:.*$", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("file", metavar="FILE", help="the policy file or targets file of the daemon")
    words = f"the running daemon's metrics port; default: {DAEMON}"
    parser.add_argument("--daemon", default=DAEMON, metavar="URL", help=words)


_DESCRIPTION = (
    "freeze: hold the tables of running servers as they are; nothing is changed, leases are renewed. thaw: "
    "end a freeze. Sets the key `frozen` in the file, which the daemon reads within a second, and asks the "
    "daemon whether it did. Exit code 5: the file is changed, and no daemon confirmed it."
)


def run(options: argparse.Namespace) -> int:
    """Raises SpecctlError."""
    return freeze(options.file, is_frozen=options.command == "freeze", daemon=options.daemon)


def freeze(file: str, *, is_frozen: bool, daemon: str) -> int:
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
    word = "frozen" if is_frozen else "thawed"
    try:
        known = asyncio.run(_confirmed(daemon, path, is_frozen))
    except TargetError as error:
        print(
            f"{path}: frozen: {str(is_frozen).lower()} is written, but not confirmed: {error}",
            file=sys.stderr,
        )
        return EXIT_NOT_CONFIRMED
    print(f"{path}: {word}, as the daemon at {daemon} says ({known.targets} target(s))")
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
