"""Policy files: YAML in, a checked policy out, again when they change. Errors name file, line, key and the
allowed values."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from pathlib import Path
from typing import cast

from specctl.errors import PolicyError
from specctl.local_file import WatchedFile, is_file
from specctl.plain_text import plain_text, plain_value
from specctl.policy.models import KINDS, AnyPolicy
from specctl.yaml_model import as_model
from specctl.yaml_text import Document, read_yaml

__all__ = [
    "PolicyFile",
    "PolicyFiles",
    "find_policy",
    "load_policy",
    "parse_policy",
    "policy_of",
    "shipped_policies",
]

EXPECTED = f"the key kind: {', '.join(KINDS)}"


def shipped_policies(kind: str = "") -> list[Path]:
    """The policies that come with specctl, or a ``kind`` of files in a folder of theirs."""
    folder = Path(str(files("specctl"))) / "policies"
    return sorted((folder / kind).glob("*.yaml"))


def find_policy(name_or_path: str) -> Path:
    """A path, or the bare name of a shipped policy. Raises PolicyError when there is no such file."""
    path = Path(name_or_path)
    if is_file(path):
        return path
    shipped = shipped_policies()
    wanted = path.name.removesuffix(".yaml")
    for candidate in shipped:
        if candidate.stem == wanted and name_or_path in (wanted, f"{wanted}.yaml", f"policies/{wanted}.yaml"):
            return candidate
    known = ", ".join(candidate.stem for candidate in shipped) or "none"
    raise PolicyError(f"{plain_text(name_or_path)}: no such file; shipped policies: {known}")


def load_policy(path: Path) -> AnyPolicy:
    """Raises PolicyError that lists everything wrong with the file."""
    return policy_of(read_yaml(path, PolicyError, EXPECTED))


def parse_policy(text: str, source: str) -> AnyPolicy:
    """``source`` names the text in errors. Raises PolicyError."""
    return policy_of(Document(text, source, PolicyError, EXPECTED))


def policy_of(document: Document) -> AnyPolicy:
    """Raises the document's error type."""
    kind = document.data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        got = f", got {plain_value(kind)}" if "kind" in document.data else " (missing)"
        words = f"kind: expected one of {', '.join(KINDS)}{got}"
        raise document.error_type(f"{document.source}:{document.line(('kind',))}: {words}")
    return cast("AnyPolicy", as_model(document, KINDS[kind]))


class PolicyFile(WatchedFile[AnyPolicy]):
    """Raises PolicyError at once when the file is invalid at the start."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, load_policy, "policy")

    @property
    def policy(self) -> AnyPolicy:
        return self.value


class PolicyFiles:
    """Every policy file that was asked for, each read once. One that was good once stays usable."""

    def __init__(self) -> None:
        self._files: dict[Path, PolicyFile] = {}

    def get(self, path: Path) -> PolicyFile:
        """Raises PolicyError when the file is new here and invalid."""
        if path not in self._files:
            self._files[path] = PolicyFile(path)
        return self._files[path]

    @property
    def files(self) -> tuple[PolicyFile, ...]:
        return tuple(self._files.values())

    async def refresh(self) -> None:
        await asyncio.gather(*(file.refresh() for file in self.files))

    @property
    def is_valid(self) -> bool:
        """Every file is in force as it stands on disk."""
        return all(file.refusal is None for file in self.files)
