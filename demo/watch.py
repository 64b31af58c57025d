"""Look at the running server twice a second: what it is allowed to draft, and what it drafted."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import groupby

import httpx

from specctl.contract.table import AppliedTable, TableRow
from specctl.contract.telemetry import Telemetry

__all__ = ["Totals", "Watch", "describe", "read_totals"]

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
    """Tables that are described unlike the one before."""

    async def run(self, client: httpx.AsyncClient) -> None:
        """Until cancelled."""
        while True:
            telemetry = await read_telemetry(client)
            now_s = time.monotonic()
            self.decoding.append((now_s, telemetry.decoding))
            self.num_speculative_tokens.append((now_s, telemetry.num_speculative_tokens))
            table = AppliedTable.model_validate_json((await client.get("/specctl/v1/table")).content)
            if not self.tables or describe(self.tables[-1][1]) != describe(table):
                self.tables.append((now_s, table))
            await asyncio.sleep(POLL_S)


async def read_telemetry(client: httpx.AsyncClient) -> Telemetry:
    answer = await client.get("/specctl/v1/telemetry")
    answer.raise_for_status()
    return Telemetry.model_validate_json(answer.content)


async def read_totals(client: httpx.AsyncClient) -> Totals:
    return Totals.of(await read_telemetry(client))


def describe(table: AppliedTable) -> str:
    """``1-2: 8, 3: 8 from a chance of 0.2, 4+: 0``: drafted tokens by number of decoding requests, and the
    least chance of a drafted one where the row names it."""
    alike = [list(rows) for _, rows in groupby(table.rows, key=_setting)]
    return ", ".join(f"{_batches(rows[0], rows[-1])}: {_setting(rows[0])}" for rows in alike)


def _setting(row: TableRow) -> str:
    if row.num_speculative_tokens == 0 or row.min_token_prob is None:
        return str(row.num_speculative_tokens)
    return f"{row.num_speculative_tokens} from a chance of {row.min_token_prob:g}"


def _batches(first: TableRow, last: TableRow) -> str:
    start, end = first.decode_batch_from, last.decode_batch_to
    if end is None:
        return f"{start}+"
    return str(start) if start == end else f"{start}-{end}"
