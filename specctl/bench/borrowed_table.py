"""The table of a running server, borrowed under a lease and put back as it was found."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import Setting
from specctl.contract.table import AppliedTable, TablePut, TableRow
from specctl.engine_api.client import EngineClient
from specctl.errors import BenchFailed, ContractError, LeaseHeld, SpecctlError, TargetError, VersionConflict

__all__ = ["BorrowedTable"]

logger = logging.getLogger(__name__)

LEASE_S = 30.0
RENEW_PART = 3.0
"""A lease is renewed after a third of it."""
PUT_BACK_TRIES = 5
PUT_TRIES = 4
PUT_BACK_PAUSE_S = 0.5


class BorrowedTable:
    """``find`` first. While a setting is held, a lease is renewed; if this process is killed, the server goes
    back to its start table when the lease has run out."""

    def __init__(self, client: EngineClient, capabilities: Capabilities, owner: str) -> None:
        self._client, self._capabilities, self._owner = client, capabilities, owner
        self._renewing: asyncio.Task[None] | None = None
        self._lost: Exception | None = None
        self.found: AppliedTable | None = None

    async def find(self) -> AppliedTable:
        """Reads the table that is put back later. Raises ContractError where it is another's, or cannot be
        changed."""
        if not self._capabilities.controllable:
            raise ContractError(f"the table cannot be changed: {self._capabilities.why_not_controllable}")
        found = await self._client.table()
        if found.lease_remaining_s is not None and found.owner != self._owner:
            held = LeaseHeld(found.owner or "unknown", found.lease_remaining_s)
            raise ContractError(f"{held}; stop that daemon first, or wait")
        self.found = found
        return found

    async def hold(self, setting: Setting) -> None:
        """One setting for every decode batch, until ``put_back`` or another ``hold``."""
        await self._stop_renewing()
        row = TableRow(decode_batch_from=1, **setting.model_dump())
        await self._put((row,))
        self._renewing = asyncio.create_task(self._renew((row,)))

    async def check(self) -> None:
        """Raises BenchFailed where a held table was lost to another owner or to a server that was gone."""
        if self._lost is not None:
            raise BenchFailed(f"{self._client.target}: the held table was lost: {self._lost}")

    async def put_back(self) -> None:
        """The found table without a lease; tried several times. A table that another owner has by now is left
        alone. Raises BenchFailed where the server does not take it; its lease then ends by itself."""
        await self._stop_renewing()
        found = self.found
        if found is None:
            return
        for left in reversed(range(PUT_BACK_TRIES)):
            try:
                now = await self._client.table()
                if now.rows == found.rows and now.lease_remaining_s is None:
                    return
                if now.lease_remaining_s is not None and now.owner != self._owner:
                    logger.warning("%s: the table is %s's now, and stays", self._client.target, now.owner)
                    return
                await self._put(found.rows, lease_s=None, reason="put back as found")
                return
            except (TargetError, VersionConflict) as error:
                if not left:
                    raise BenchFailed(
                        f"{self._client.target}: the table could not be put back ({error}); the lease ends "
                        f"within {LEASE_S:g} s, and the start table then holds"
                    ) from error
            await asyncio.sleep(PUT_BACK_PAUSE_S)

    async def _put(
        self,
        rows: tuple[TableRow, ...],
        *,
        lease_s: float | None = LEASE_S,
        reason: str = "held for a benchmark",
    ) -> None:
        """A renewal that was cancelled may still arrive: a conflict of versions is tried again."""
        for left in reversed(range(PUT_TRIES)):
            now = await self._client.table()
            try:
                applied = await self._client.put(self._change(rows, now.version, lease_s, reason))
            except VersionConflict:
                if not left:
                    raise
                continue
            break
        if [row.setting for row in applied.rows] != [row.setting for row in rows]:
            raise ContractError(f"{self._client.target}: applied another table than it was asked to")

    def _change(
        self, rows: tuple[TableRow, ...], version: int, lease_s: float | None, reason: str
    ) -> TablePut:
        assert self.found is not None
        found = self.found.fallback_num_speculative_tokens
        return TablePut(
            base_version=version,
            rows=rows,
            lease_s=None if lease_s is None else min(lease_s, self._capabilities.lease_max_s),
            fallback_num_speculative_tokens=found if lease_s is None else None,
            owner=self._owner,
            reason=reason,
            class_limits=self.found.class_limits,
        )

    async def _renew(self, rows: tuple[TableRow, ...]) -> None:
        every_s = min(LEASE_S, self._capabilities.lease_max_s) / RENEW_PART
        while True:
            await asyncio.sleep(every_s)
            try:
                await self._put(rows)
            except TargetError as error:
                logger.warning("%s: a lease was not renewed: %s", self._client.target, error)
            except SpecctlError as error:
                self._lost = error
                return

    async def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
            self._renewing = None
