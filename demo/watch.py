"""Look at the running server twice a second: what it is allowed to draft, and what it drafted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import httpx

from specctl.contract.table import AppliedTable
from specctl.contract.telemetry import Telemetry

__all__ = ["Totals", "Watch", "read_totals"]

POLL_S = 0.5


@dataclass(frozen=True)
class Totals:
    """Counters of the whole server so far."""

    drafted_tokens: int
    accepted_tokens: int

    @classmethod
    def of(cls, telemetry: Telemetry) -> Totals:
        return cls(
            sum(cell.drafted_tokens for cell in telemetry.cells),
            sum(cell.accepted_tokens for cell in telemetry.cells),
        )


@dataclass
class Watch:
    """Points in time.monotonic seconds."""

    decoding: list[tuple[float, int]] = field(default_factory=list)
    num_speculative_tokens: list[tuple[float, int]] = field(default_factory=list)
    tables: list[tuple[float, AppliedTable]] = field(default_factory=list)
    """Tables whose rows differ from the one before."""

    async def run(self, client: httpx.AsyncClient) -> None:
        """Until cancelled."""
        while True:
            telemetry = await read_telemetry(client)
            now_s = time.monotonic()
            self.decoding.append((now_s, telemetry.decoding))
            self.num_speculative_tokens.append((now_s, telemetry.num_speculative_tokens))
            table = AppliedTable.model_validate_json((await client.get("/specctl/v1/table")).content)
            if not self.tables or self.tables[-1][1].rows != table.rows:
                self.tables.append((now_s, table))
            await asyncio.sleep(POLL_S)


async def read_telemetry(client: httpx.AsyncClient) -> Telemetry:
    answer = await client.get("/specctl/v1/telemetry")
    answer.raise_for_status()
    return Telemetry.model_validate_json(answer.content)


async def read_totals(client: httpx.AsyncClient) -> Totals:
    return Totals.of(await read_telemetry(client))


def describe(table: AppliedTable) -> str:
    """``1-2: 8, 3+: 0``: drafted tokens by number of decoding requests."""
    return ", ".join(_describe_rows(table))


def _describe_rows(table: AppliedTable) -> Iterable[str]:
    for row in table.rows:
        end = row.decode_batch_to
        batch = f"{row.decode_batch_from}+" if end is None else f"{row.decode_batch_from}-{end}"
        if end == row.decode_batch_from:
            batch = str(end)
        yield f"{batch}: {row.num_speculative_tokens}"
