"""The table of a running server, taken for moments at a time and always put back."""

from __future__ import annotations

import asyncio
import logging

from specctl.clock import Clock
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TablePut, TableRow, uniform_rows
from specctl.engine.checked_table import SpeculationTable
from specctl.engine_api.client import EngineClient
from specctl.errors import ContractError, LeaseHeld, SpecctlError, TargetError, VersionConflict

__all__ = ["TemporaryTable"]

logger = logging.getLogger(__name__)

LEASE_S = 10.0
PUT_BACK_TRIES = 5
PUT_BACK_PAUSE_S = 0.5


class TemporaryTable:
    """While a number is held there is a short lease, whose fallback is what the found table gives the present
    load. In between the found table is in force without a lease: who kills this process changes nothing then,
    and another owner may take over, which ends the loan with LeaseHeld or VersionConflict."""

    def __init__(self, client: EngineClient, capabilities: Capabilities, clock: Clock, *, owner: str) -> None:
        self._client = client
        self._capabilities = capabilities
        self._clock = clock
        self._owner = owner
        self._is_lent = False

    async def find(self) -> AppliedTable:
        """Reads the table that is to be put back. Raises LeaseHeld where it is somebody's, ContractError."""
        if not self._capabilities.controllable:
            raise ContractError(f"the table cannot be changed: {self._capabilities.why_not_controllable}")
        self.found = await self._client.table()
        self._version = self.found.version
        if self.found.lease_remaining_s is not None:
            raise LeaseHeld(self.found.owner or "unknown", self.found.lease_remaining_s)
        self._table = SpeculationTable(self.found.rows, self._capabilities)
        return self.found

    def found_number(self, decode_batch: int) -> int:
        """What the found table says for a decode batch."""
        return self._table.lookup(decode_batch)

    async def hold(self, num_speculative_tokens: int, decode_batch: int) -> None:
        """One number for every decode batch, until ``rest`` or until LEASE_S have passed."""
        await self._put(
            uniform_rows(num_speculative_tokens),
            lease_s=min(LEASE_S, self._capabilities.lease_max_s),
            fallback=self.found_number(decode_batch),
            reason=f"measuring {num_speculative_tokens} tokens for a moment",
        )

    async def rest(self) -> None:
        """The found table, without a lease. Raises LeaseHeld and VersionConflict where another has it."""
        if self._is_lent:
            await self._put(
                self.found.rows,
                lease_s=None,
                fallback=self.found.fallback_num_speculative_tokens,
                reason=f"put back as found ({self.found.owner or 'start'})",
            )
            self._is_lent = False

    async def put_back(self) -> None:
        """As ``rest``, several times where the server does not answer; another's table is left alone."""
        for left in reversed(range(PUT_BACK_TRIES)):
            try:
                await self.rest()
                return
            except (LeaseHeld, VersionConflict) as error:
                if not left or isinstance(error, LeaseHeld) or not await self._read_again():
                    logger.warning("the table is another's now, and stays: %s", error)
                    return
            except TargetError as error:
                if not left:
                    raise SpecctlError(
                        f"the table could not be put back: {error}; its lease ends within {LEASE_S:g} s, "
                        "and the fallback then holds"
                    ) from error
            await self._clock.sleep(PUT_BACK_PAUSE_S, asyncio.Event())

    async def _put(
        self, rows: tuple[TableRow, ...], *, lease_s: float | None, fallback: int | None, reason: str
    ) -> None:
        change = TablePut(
            base_version=self._version,
            rows=rows,
            lease_s=lease_s,
            fallback_num_speculative_tokens=fallback,
            owner=self._owner,
            reason=reason,
            # Also while it is borrowed: a class that may not draft does not for a measurement either.
            class_limits=self.found.class_limits,
        )
        # From here on the server may hold ours, whether its answer arrives or not.
        self._is_lent = True
        try:
            applied = await self._client.put(change)
        except (TargetError, ContractError):
            await self._read_again()
            raise
        if applied.rows != rows:
            raise ContractError("the server says that it applied another table than it was asked to")
        self._version = applied.version

    async def _read_again(self) -> bool:
        """Whether the table is ours: the answer to a change was lost, and it was made all the same."""
        try:
            seen = await self._client.table()
        except (TargetError, ContractError):
            return False
        if seen.owner == self._owner:
            self._version = seen.version
        return seen.owner == self._owner
