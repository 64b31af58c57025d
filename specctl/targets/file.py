"""A targets file, reloaded when it changes. A wrong change is refused whole; the last good one stays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from specctl.errors import PolicyError, TargetError, TargetsError
from specctl.targets.base import Target, TargetSource, make_target
from specctl.targets.dns import DnsSource
from specctl.targets.fixed import FixedSource
from specctl.targets.kubernetes import KubernetesQuery, KubernetesSource
from specctl.targets.models import KubernetesEntry, PolicyRule, TargetEntry, TargetsSettings
from specctl.yaml_text import KeyPath, file_stamp, parse_yaml, read_text

__all__ = ["FindPolicy", "Rule", "TargetsFile", "parse_targets"]

logger = logging.getLogger(__name__)

FILE_MAX_BYTES = 4 * 1024 * 1024
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


class TargetsFile:
    """Raises TargetsError and PolicyError at once when the file is wrong at the start."""

    def __init__(self, path: Path, find_policy: FindPolicy) -> None:
        self.path = path
        self.refusal: str | None = None
        self._find_policy = find_policy
        self._stamp = file_stamp(self.path)
        self.rules, self.sources, self.frozen = self._load()

    def refresh(self) -> bool:
        """True when a changed file was taken. Logs a refusal once for each wrong state of the file."""
        stamp = file_stamp(self.path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.rules, self.sources, self.frozen = self._load()
        except (TargetsError, PolicyError) as error:
            self.refusal = str(error)
            logger.error("targets refused, the last good ones stay:\n%s", error)
            return False
        self.refusal = None
        logger.info("%s: new targets taken", self.path)
        return True

    def _load(self) -> tuple[tuple[Rule, ...], tuple[TargetSource, ...], bool]:
        settings, lines = parse_targets(read_text(self.path, TargetsError, FILE_MAX_BYTES), str(self.path))
        rules = tuple(self._rule(rule, lines, i) for i, rule in enumerate(settings.policies))
        return rules, _sources(settings.targets, str(self.path), lines), settings.frozen

    def _rule(self, rule: PolicyRule, lines: dict[KeyPath, int], index: int) -> Rule:
        try:
            policy = self._find_policy(rule.policy, self.path.parent)
        except PolicyError as error:
            line = lines[("policies", index, "policy")]
            raise PolicyError(f"{self.path}:{line}: policies.{index}.policy: {error}") from error
        return Rule(tuple(sorted(rule.match.items())), policy)


def parse_targets(text: str, source: str) -> tuple[TargetsSettings, dict[KeyPath, int]]:
    """The settings and the line of every key. Raises TargetsError with everything that is wrong."""
    data, lines = parse_yaml(text, source, TargetsError, "the key targets")
    try:
        return TargetsSettings.model_validate(data), lines
    except ValidationError as error:
        words = [_words(details, lines, source) for details in error.errors(include_url=False)]
        raise TargetsError("\n".join(words)) from error


def _words(details: ErrorDetails, lines: dict[KeyPath, int], source: str) -> str:
    path = tuple(details["loc"])
    line = next((lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in lines), 1)
    key = ".".join(map(str, path)) or "targets file"
    if details["type"] == "extra_forbidden":
        return f"{source}:{line}: {key}: unknown key. Allowed here: {', '.join(_keys_at(path))}"
    if details["type"] == "missing":
        return f"{source}:{line}: {key}: missing"
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] == "value_error":
        return f"{source}:{line}: {key}: {message}"
    return f"{source}:{line}: {key}: {message}, got {details['input']!r}"


def _keys_at(path: KeyPath) -> list[str]:
    if len(path) == 1:
        return sorted(TargetsSettings.model_fields)
    if path[0] == "policies":
        return sorted(PolicyRule.model_fields)
    return sorted((KubernetesEntry if "kubernetes" in path[:-1] else TargetEntry).model_fields)


def _sources(
    entries: Sequence[TargetEntry], where: str, lines: dict[KeyPath, int]
) -> tuple[TargetSource, ...]:
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
            raise TargetsError(f"{where}:{lines[('targets', i, 'url')]}: targets.{i}.url: {error}") from error
    return (FixedSource(f"urls of {where} {urls}", urls), *sources)


def _polled(entry: TargetEntry) -> TargetSource:
    if entry.dns is not None:
        host, _, port = entry.dns.rpartition(":")
        return DnsSource(host, int(port), entry.labels, interval_s=entry.interval_s)
    assert entry.kubernetes is not None
    asked = entry.kubernetes
    query = KubernetesQuery(
        asked.namespace, asked.selector, asked.port, asked.api, asked.token_file, asked.ca_file, entry.labels
    )
    return KubernetesSource(query, interval_s=entry.interval_s)
