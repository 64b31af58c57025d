"""What the loop asks of an actuator: set, and read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specctl.contract.classes import ClassLimit
from specctl.contract.table import AppliedTable, TableRow

__all__ = ["Actuator", "DesiredTable"]


@dataclass(frozen=True, slots=True)
class DesiredTable:
    """A whole table to put in force. ``base_version``: the version it replaces."""

    base_version: int
    rows: tuple[TableRow, ...]
    lease_s: float
    fallback_num_speculative_tokens: int
    owner: str
    reason: str
    class_limits: tuple[ClassLimit, ...] = ()


class Actuator(Protocol):
    @property
    def is_dry_run(self) -> bool:
        """True: ``apply`` changes nothing anywhere."""

    async def apply(self, desired: DesiredTable) -> AppliedTable | None:
        """Put a table in force; the answer is what the engine says it applied, None in a dry run.

        Raises:
            VersionConflict: the table changed since it was read.
            LeaseHeld: another owner steers this engine.
            TableError: the engine refuses a part; nothing was applied.
            ContractError: the engine refuses the message or the token.
            TargetError: unreachable, late, or not ready.
        """

    async def observe(self) -> AppliedTable:
        """What is in force now. Raises TargetError and ContractError."""
