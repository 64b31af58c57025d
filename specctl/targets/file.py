"""A targets file, reloaded when it changes. A wrong change is refused whole; the last good one stays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specctl.errors import PolicyError, SpecctlError, TargetError, TargetsError
from specctl.local_file import Reading, file_stamp
from specctl.targets.base import Target, TargetSource, make_target
from specctl.targets.dns import DnsSource
from specctl.targets.fixed import FixedSource
from specctl.targets.kubernetes import KubernetesSource
from specctl.targets.models import PolicyRule, TargetEntry, TargetsSettings
from specctl.yaml_model import as_model
from specctl.yaml_text import Document, read_yaml

__all__ = ["FindPolicy", "Rule", "TargetsFile", "parse_targets"]

logger = logging.getLogger(__name__)

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


_Loaded = tuple[tuple[Rule, ...], tuple[TargetSource, ...], bool]


class TargetsFile:
    """Raises TargetsError and PolicyError at once when the file is wrong at the start."""

    def __init__(self, path: Path, find_policy: FindPolicy) -> None:
        self.path = path
        self.refusal: str | None = None
        self._find_policy = find_policy
        self._stamp = file_stamp(self.path)
        self._reading = Reading(self._changed, f"targets file {path.name}")
        self.rules, self.sources, self.frozen = self._load()

    def refresh(self) -> bool:
        """True when a changed file was taken. Logs a refusal once for each wrong state of the file."""
        return self._take(self._changed())

    async def refresh_async(self) -> bool:
        """The same; the file is read in a thread, so that a slow disk does not hold up the event loop."""
        return self._take(await self._reading.result())

    def _changed(self) -> _Loaded | SpecctlError | None:
        """None: the file is as it was. Changes nothing that others see."""
        stamp = file_stamp(self.path)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            return self._load()
        except (TargetsError, PolicyError) as error:
            return error

    def _take(self, read: _Loaded | SpecctlError | None) -> bool:
        if isinstance(read, SpecctlError):
            self.refusal = str(read)
            logger.error("targets refused, the last good ones stay:\n%s", read)
        if read is None or isinstance(read, SpecctlError):
            return False
        self.rules, self.sources, self.frozen = read
        self.refusal = None
        logger.info("%s: new targets taken", self.path)
        return True

    def _load(self) -> _Loaded:
        document = read_yaml(self.path, TargetsError, EXPECTED, FILE_MAX_BYTES)
        settings = as_model(document, TargetsSettings)
        rules = tuple(self._rule(rule, document, i) for i, rule in enumerate(settings.policies))
        return rules, _sources(settings.targets, document), settings.frozen

    def _rule(self, rule: PolicyRule, document: Document, index: int) -> Rule:
        try:
            policy = self._find_policy(rule.policy, self.path.parent)
        except (PolicyError, OSError, ValueError) as error:
            line = document.line(("policies", index, "policy"))
            words = f"{document.source}:{line}: policies.{index}.policy: {error}"
            raise PolicyError(words) from error
        return Rule(tuple(sorted(rule.match.items())), policy)


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
