"""Policy files on disk, reloaded when they change."""

from __future__ import annotations

import asyncio
from pathlib import Path

from specctl.local_file import WatchedFile
from specctl.policy.loader import load_policy
from specctl.policy.models import AnyPolicy

__all__ = ["PolicyFile", "PolicyFiles"]


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
