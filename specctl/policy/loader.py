"""Policy files: YAML in, a checked policy out. Errors name file, line, key and the allowed values."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import cast

from specctl.errors import PolicyError
from specctl.local_file import is_file
from specctl.plain_text import plain_text, plain_value
from specctl.policy.models import KINDS, AnyPolicy
from specctl.yaml_model import as_model
from specctl.yaml_text import Document, read_yaml

__all__ = ["find_policy", "load_policy", "parse_policy", "policy_of", "shipped_policies"]

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
