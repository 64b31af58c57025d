"""A launch command, read as its engine would read it. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specctl.errors import SpecctlError
from specctl.json_bounds import read_json

__all__ = ["Launch", "LaunchError", "is_launch", "parse_launch"]

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PROGRAMS = {"vllm", "sglang"}
_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang",
    "sglang.cli.main": "sglang",
    "specctl_sglang.cpu_serve": "sglang",
}
_SHORT = {"-tp": "tensor-parallel-size", "-dp": "data-parallel-size", "-pp": "pipeline-parallel-size"}
_SHORT |= {"-sc": "speculative-config", "-cc": "compilation-config"}
_ALIASES = {
    "tp": "tensor-parallel-size",
    "tp-size": "tensor-parallel-size",
    "dp": "data-parallel-size",
    "dp-size": "data-parallel-size",
    "pp-size": "pipeline-parallel-size",
    "model-path": "model",
    "speculative-draft-model": "speculative-draft-model-path",
}


class LaunchError(SpecctlError):
    """The command line starts no engine that is known."""


@dataclass(frozen=True)
class Launch:
    """``options`` by long name without dashes before it, ``-`` between words; True: given without a value.

    ``environment``: of the command, those of this process below it.
    """

    engine: str
    model: str | None
    options: dict[str, str | bool]
    environment: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        value = self.options.get(name)
        return value if isinstance(value, str) else None

    def has(self, name: str) -> bool:
        return name in self.options

    def number(self, name: str) -> float | None:
        """None: not given, or no number."""
        value = self.text(name)
        try:
            return None if value is None else float(value)
        except ValueError:
            return None

    def count(self, name: str, default: int) -> int:
        number = self.number(name)
        return default if number is None else int(number)

    @property
    def model_folder(self) -> Path | None:
        """None: a name on a hub, of which nothing can be read here."""
        return folder_of(self.model)

    @property
    def tensor_parallel_size(self) -> int:
        return self.count("tensor-parallel-size", 1)

    def json_option(self, name: str) -> dict[str, Any] | None:
        """Of ``--name JSON`` and ``--name.key VALUE`` together. Raises ValueError for what is no object."""
        whole = self.text(name)
        found: Any = None if whole is None else read_json(whole)
        if found is not None and not isinstance(found, dict):
            raise ValueError("expected a JSON object")
        for option, value in self.options.items():
            head, dot, key = option.partition(".")
            if head == name and dot:
                found = {**(found or {}), key.replace("-", "_"): _scalar(value)}
        return None if found is None else dict(found)


def folder_of(name: object) -> Path | None:
    path = Path(name) if isinstance(name, str) and name else None
    try:
        return path if path is not None and path.is_dir() else None
    except (OSError, ValueError):
        return None


def is_launch(words: Sequence[str]) -> bool:
    """Whether these are a command and not a target."""
    return _start(words)[1] is not None


def parse_launch(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Launch:
    """Raises LaunchError for a command that starts neither vLLM nor SGLang."""
    own, found = _start(words)
    if found is None:
        raise LaunchError(
            f"{words[0] if words else 'nothing'}: expected the URL of a server, or a launch command such as "
            "`vllm serve MODEL` or `python -m sglang.launch_server --model-path MODEL`"
        )
    engine, rest = found
    positional, options = _options(rest)
    model = options.get("model")
    if not isinstance(model, str):
        model = positional[0] if positional else None
    return Launch(engine, model, options, {**(environment or {}), **own})


def _start(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, list[str]] | None]:
    """The command's own environment, and its engine with the words behind its name."""
    environment: dict[str, str] = {}
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        if _ASSIGNMENT.match(word):
            key, _, value = word.partition("=")
            environment[key] = value
        elif name in _PROGRAMS:
            rest = list(words[at + 1 :])
            return environment, (name, rest[1:] if rest[:1] == ["serve"] else rest)
        elif word == "-m" and at + 1 < len(words) and words[at + 1] in _MODULES:
            rest = list(words[at + 2 :])
            return environment, (_MODULES[words[at + 1]], rest[1:] if rest[:1] == ["serve"] else rest)
        elif "://" in word:
            break
    return environment, None


def _options(words: Sequence[str]) -> tuple[list[str], dict[str, str | bool]]:
    positional: list[str] = []
    options: dict[str, str | bool] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        short, _, behind = word.partition("=")
        if short in _SHORT:
            name, value = _SHORT[short], behind
        elif word.startswith("--") and len(word) > 2:
            name, _, value = word[2:].partition("=")
            name = _long(name)
        else:
            positional.append(word)
            continue
        if not value and at < len(words) and not _is_option(words[at]):
            value = words[at]
            at += 1
        options[name] = value or True
    return positional, options


def _long(name: str) -> str:
    head, dot, key = name.partition(".")
    head = head.replace("_", "-")
    return _ALIASES.get(head, head) + dot + key


def _is_option(word: str) -> bool:
    return word.partition("=")[0] in _SHORT or (word.startswith("--") and len(word) > 2)


def _scalar(value: str | bool) -> Any:
    if isinstance(value, bool):
        return value
    try:
        return read_json(value)
    except ValueError:
        return value
