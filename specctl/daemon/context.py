"""What the loops of one daemon share, and what a loop asks of its target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from specctl.clock import Clock
from specctl.contract.table import AppliedTable, TablePut
from specctl.policy.models import AnyPolicy
from specctl.types import Observation

__all__ = ["LoopContext", "Observer", "PolicySource", "TableRoutes"]


class Observer(Protocol):
    async def observe(self) -> Observation:
        """Poll once. Raises TargetError when the target cannot be reached, is late, or is no engine."""

    async def close(self) -> None:
        """Release the connection."""


class TableRoutes(Protocol):
    """Raises VersionConflict, LeaseHeld, TableError, ContractError, TargetError."""

    async def put(self, change: TablePut) -> AppliedTable:
        """What the engine says that it applied."""

    async def table(self) -> AppliedTable:
        """What is in force."""


class PolicySource(Protocol):
    """Where the policy in force comes from; it may change between two ticks."""

    @property
    def policy(self) -> AnyPolicy: ...


@dataclass(frozen=True, slots=True)
class LoopContext:
    """What the loops of one daemon share. ``is_frozen``: asked at every tick; a policy that says ``frozen``
    counts, too. ``is_dry_run``: nothing is ever put. ``is_trial``: asked at every tick; decisions are shown,
    and the table in force is held as by a freeze."""

    owner: str
    clock: Clock
    is_dry_run: bool = False
    is_frozen: Callable[[], bool] = lambda: False
    is_trial: Callable[[], bool] = lambda: False
