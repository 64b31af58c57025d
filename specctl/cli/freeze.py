"""``specctl freeze`` and ``specctl thaw``: set the key ``frozen`` of a policy file or targets file."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from specctl.errors import PolicyError, SpecctlError, TargetsError
from specctl.policy.loader import find_policy, parse_policy, shipped_policies
from specctl.targets.file import parse_targets
from specctl.yaml_text import parse_yaml, read_text

__all__ = ["freeze"]

_KEY = re.compile(r"^frozen[ \t]*:.*$", re.MULTILINE)


def freeze(file: str, *, is_frozen: bool) -> int:
    """A running daemon takes the file up within a second. Raises SpecctlError; then nothing was written."""
    path = Path(file) if Path(file).exists() else find_policy(file)
    # A file that is mounted by a link is replaced where it lies.
    path = path.resolve()
    if path in {shipped.resolve() for shipped in shipped_policies()}:
        raise SpecctlError(f"{path}: comes with specctl and is not edited; run the daemon on a copy of it")
    text = read_text(path, SpecctlError)
    if _is_frozen(text, str(path)) != is_frozen:
        line = f"frozen: {str(is_frozen).lower()}"
        edited = _KEY.sub(line, text) if _KEY.search(text) else f"{text.rstrip()}\n{line}\n"
        if _is_frozen(edited, str(path), "; after adding the key, which it takes only by hand") != is_frozen:
            raise SpecctlError(f"{path}: the key frozen is not where it was expected; set it by hand")
        _write(path, edited)
    print(f"{path}: {'frozen' if is_frozen else 'thawed'}")
    return 0


def _is_frozen(text: str, source: str, hint: str = "") -> bool:
    """Raises PolicyError or TargetsError for a file that no daemon would take."""
    try:
        data, _ = parse_yaml(text, source, SpecctlError, "the key kind (a policy) or targets")
        if "targets" in data:
            return parse_targets(text, source)[0].frozen
        return parse_policy(text, source).frozen
    except (PolicyError, TargetsError) as error:
        raise type(error)(f"{error}{hint}") from error
    except SpecctlError as error:
        raise SpecctlError(f"{error}{hint}") from error


def _write(path: Path, text: str) -> None:
    """Whole or not at all: the daemon may read at any moment."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise SpecctlError(f"{path}: {error.strerror or error}") from error
