"""Every error that specctl raises on purpose.

SpecctlError
├── ContractError        a message between daemon and engine breaks the contract
│   ├── TableError       a speculation table is not applicable; carries the refusals
│   ├── VersionConflict  the table changed since the writer read it
│   └── LeaseHeld        another owner's lease on the table is still running
├── PolicyError          a policy file is wrong; names file, line, key and allowed values
└── TargetError          a target cannot be reached, answers late, or is no engine
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specctl.contract.table import Refusal

__all__ = [
    "ContractError",
    "LeaseHeld",
    "PolicyError",
    "SpecctlError",
    "TableError",
    "TargetError",
    "VersionConflict",
]


class SpecctlError(Exception):
    """Base of every error raised on purpose."""


class ContractError(SpecctlError):
    """A message between daemon and engine breaks the contract."""


class TableError(ContractError):
    """A speculation table is not applicable. Nothing of it was applied."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__("; ".join(str(refusal) for refusal in self.refusals))


class VersionConflict(ContractError):
    """The table changed since the writer read it."""

    def __init__(self, expected: int, got: int) -> None:
        self.expected = expected
        self.got = got
        super().__init__(f"the table is at version {expected}, the change was made against version {got}")


class LeaseHeld(ContractError):
    """Another owner's lease on the table is still running."""

    def __init__(self, owner: str, remaining_s: float) -> None:
        self.owner = owner
        self.remaining_s = remaining_s
        super().__init__(f"the table is leased by {owner!r} for another {remaining_s:.1f} s")


class PolicyError(SpecctlError):
    """A policy file is wrong."""


class TargetError(SpecctlError):
    """A target cannot be reached, answers late, or is no engine."""
