"""A policy file on disk, reloaded when it changes. An invalid change is refused; the last good one stays."""

from __future__ import annotations

import logging
from pathlib import Path

from specctl.errors import PolicyError
from specctl.local_file import Reading, file_stamp
from specctl.policy.loader import load_policy
from specctl.policy.models import AnyPolicy

__all__ = ["PolicyFile", "PolicyFiles"]

logger = logging.getLogger(__name__)


class PolicyFile:
    """Raises PolicyError at once when the file is invalid at the start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refusal: str | None = None
        self._stamp = file_stamp(self.path)
        self.policy: AnyPolicy = load_policy(path)

    def refresh(self) -> bool:
        """True when a new valid policy was taken. Logs a refusal once for each invalid state of the file.

        May be called in a thread of its own.
        """
        stamp = file_stamp(self.path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            policy = load_policy(self.path)
        except PolicyError as error:
            self.refusal = str(error)
            logger.error("policy refused, the last good one stays:\n%s", error)
            return False
        self.refusal = None
        changed = policy != self.policy
        self.policy = policy
        if changed:
            logger.info("%s: new policy taken (kind %s)", self.path, policy.kind)
        return changed


class PolicyFiles:
    """Every policy file that was asked for, each read once. One that was good once stays usable."""

    def __init__(self) -> None:
        self._files: dict[Path, PolicyFile] = {}
        self._reading = Reading(self.refresh, "policy files")

    def get(self, path: Path) -> PolicyFile:
        """Raises PolicyError when the file is new here and invalid."""
        if path not in self._files:
            self._files[path] = PolicyFile(path)
        return self._files[path]

    @property
    def files(self) -> tuple[PolicyFile, ...]:
        return tuple(self._files.values())

    def refresh(self) -> None:
        for file in self.files:
            file.refresh()

    async def refresh_async(self) -> None:
        """In a thread, so that a slow disk does not hold up the event loop."""
        await self._reading.result()

    @property
    def is_valid(self) -> bool:
        """Every file is in force as it stands on disk."""
        return all(file.refusal is None for file in self.files)
