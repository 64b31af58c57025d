"""Read the table of the running server twice a second."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import groupby

import httpx

from specctl.contract.table import AppliedTable, TableRow
from specctl.core.messages import setting_words

__all__ = ["Watch", "describe"]

POLL_S = 0.5


@dataclass
class Watch:
    """Times are seconds of time.monotonic. ``settings``: drafted tokens in force at the decode batch of the
    moment; ``tables``: those that are described unlike the one before."""

    settings: list[tuple[float, int]] = field(default_factory=list)
    tables: list[tuple[float, AppliedTable]] = field(default_factory=list)

    async def run(self, client: httpx.AsyncClient) -> None:
        """Until cancelled."""
        while True:
            decoding = (await client.get("/specctl/v1/telemetry")).raise_for_status().json()["decoding"]
            answer = await client.get("/specctl/v1/table")
            now_s, table = time.monotonic(), AppliedTable.model_validate_json(answer.content)
            self.settings.append((now_s, _number(table, max(decoding, 1))))
            if not self.tables or describe(self.tables[-1][1]) != describe(table):
                self.tables.append((now_s, table))
            await asyncio.sleep(POLL_S)


def _number(table: AppliedTable, decoding: int) -> int:
    return next(
        row.num_speculative_tokens
        for row in table.rows
        if row.decode_batch_from <= decoding and (row.decode_batch_to or decoding) >= decoding
    )


def describe(table: AppliedTable) -> str:
    """``1-2 requests: 8 tokens; 3 and more: off``: settings by number of decoding requests."""
    alike = [list(rows) for _, rows in groupby(table.rows, key=_setting)]
    return "; ".join(f"{_batches(rows[0], rows[-1])}: {_setting(rows[0])}" for rows in alike)


def _setting(row: TableRow) -> str:
    return setting_words(row.setting)


def _batches(first: TableRow, last: TableRow) -> str:
    start, end = first.decode_batch_from, last.decode_batch_to
    if end is None:
        return "any number of requests" if start == 1 else f"{start} and more"
    return str(start) if start == end else f"{start}-{end}"
