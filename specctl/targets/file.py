"""A targets file, reloaded when it changes, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from specctl.errors import PolicyError, TargetError, TargetsError
from specctl.local_file import WatchedFile
from specctl.targets.base import FixedSource, Target, TargetSource, make_target
from specctl.targets.dns import DnsSource
from specctl.targets.kubernetes import KubernetesSource
from specctl.targets.models import TargetEntry, TargetsSettings
from specctl.yaml_model import as_model
from specctl.yaml_text import Document, read_yaml

__all__ = ["FindPolicy", "Loaded", "Rule", "TargetsFile", "parse_targets"]

FILE_MAX_BYTES = 4 * 1024 * 1024
EXPECTED = "the key targets"
FindPolicy = Callable[[str, Path], Path]
"""A policy's name or path, and the folder that it is relative to -> the checked file. Raises PolicyError."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Targets with the labels of ``match`` get ``policy``; they are one group."""

    match: tuple[tuple[str, str], ...]
    policy: Path

    @property
    def group(self) -> str:
        words = ",".join(f"{name}={value}" for name, value in self.match) or "all"
        return f"{words} {self.policy.stem}"

    def matches(self, target: Target) -> bool:
        return set(self.match) <= set(target.labels)


class Loaded(NamedTuple):
    rules: tuple[Rule, ...]
    sources: tuple[TargetSource, ...]
    frozen: bool


class TargetsFile(WatchedFile[Loaded]):
    """Raises TargetsError and PolicyError at once when the file is wrong at the start."""

    def __init__(self, path: Path, find_policy: FindPolicy) -> None:
        super().__init__(path, lambda path: _loaded(path, find_policy), "targets file")


def _loaded(path: Path, find_policy: FindPolicy) -> Loaded:
    document = read_yaml(path, TargetsError, EXPECTED, FILE_MAX_BYTES)
    settings = as_model(document, TargetsSettings)
    rules = []
    for i, rule in enumerate(settings.policies):
        try:
            policy = find_policy(rule.policy, path.parent)
        except (PolicyError, OSError, ValueError) as error:
            line = document.line(("policies", i, "policy"))
            raise PolicyError(f"{document.source}:{line}: policies.{i}.policy: {error}") from error
        rules.append(Rule(tuple(sorted(rule.match.items())), policy))
    return Loaded(tuple(rules), _sources(settings.targets, document), settings.frozen)


def parse_targets(text: str, source: str) -> TargetsSettings:
    """Raises TargetsError with everything that is wrong."""
    return as_model(Document(text, source, TargetsError, EXPECTED), TargetsSettings)


def _sources(entries: Sequence[TargetEntry], document: Document) -> tuple[TargetSource, ...]:
    """All ``url`` entries are one source, and come first."""
    sources: list[TargetSource] = []
    urls: list[Target] = []
    for i, entry in enumerate(entries):
        if entry.url is None:
            sources.append(_polled(entry))
            continue
        try:
            urls.append(make_target(entry.url, entry.labels))
        except TargetError as error:
            place = f"{document.source}:{document.line(('targets', i, 'url'))}"
            raise TargetsError(f"{place}: targets.{i}.url: {error}") from error
    return (FixedSource(f"urls of {document.source} {urls}", urls), *sources)


def _polled(entry: TargetEntry) -> TargetSource:
    if entry.dns is not None:
        host, _, port = entry.dns.rpartition(":")
        return DnsSource(host, int(port), entry.labels, interval_s=entry.interval_s)
    assert entry.kubernetes is not None
    return KubernetesSource(entry.kubernetes, entry.labels, interval_s=entry.interval_s)
