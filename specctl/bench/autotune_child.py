"""``specctl autotune`` as a child process beside the server, and the tables it puts in force."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

from specctl.contract.table import AppliedTable, TableRow
from specctl.core.messages import setting_words
from specctl.engine_api.client import EngineClient
from specctl.errors import BenchFailed, SpecctlError

__all__ = ["TableWatch", "autotune", "describe"]

READY_S, READY_POLL_S = 20.0, 0.2
STOP_S = 15.0
POLL_S = 0.5
LOG_CHARACTERS = 2000


@asynccontextmanager
async def autotune(
    url: str, client: EngineClient, policy: str, folder: Path, token_file: Path | None
) -> AsyncIterator[None]:
    """Runs from its first table on until SIGTERM. Writes autotune.log and audit.jsonl into the folder.

    Raises BenchFailed with the end of its log where it does not start or does not stay.
    """
    log = folder / "autotune.log"
    parts = [sys.executable, "-m", "specctl.cli.main", "autotune", "--target", url, "--policy", policy]
    parts += ["--metrics-port", "0", "--audit-log", str(folder / "audit.jsonl")]
    parts += [] if token_file is None else ["--token-file", str(token_file)]
    with log.open("ab") as output:
        # In a session of its own: Ctrl-C in the terminal is for this process, which then stops the child.
        process = await asyncio.create_subprocess_exec(
            *parts, stdout=output, stderr=output, start_new_session=True
        )
    try:
        await _wait_for_lease(client, process, log)
        yield
        if process.returncode is not None:
            raise BenchFailed(f"specctl autotune ended by itself:\n{_end_of(log)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _wait_for_lease(client: EngineClient, process: asyncio.subprocess.Process, log: Path) -> None:
    ends_s = time.monotonic() + READY_S
    while time.monotonic() < ends_s:
        if process.returncode is not None:
            raise BenchFailed(f"specctl autotune did not start:\n{_end_of(log)}")
        with contextlib.suppress(SpecctlError):
            if (await client.table()).lease_remaining_s is not None:
                return
        await asyncio.sleep(READY_POLL_S)
    raise BenchFailed(f"specctl autotune took no lease within {READY_S:g} s:\n{_end_of(log)}")


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:]


class TableWatch:
    """Reads the table twice a second. ``tables``: (time.monotonic, words, reason) of each that reads unlike
    the one before it."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.tables: list[tuple[float, str, str]] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(SpecctlError):
                table = await self._client.table()
                words = describe(table)
                if not self.tables or self.tables[-1][1] != words:
                    self.tables.append((time.monotonic(), words, table.reason))
            await asyncio.sleep(POLL_S)


def describe(table: AppliedTable) -> str:
    """``1-2 requests: 8 tokens; 3 and more: off``: settings by number of decoding requests."""
    alike = [list(rows) for _, rows in groupby(table.rows, key=_words)]
    return "; ".join(f"{_batches(rows[0], rows[-1])}: {_words(rows[0])}" for rows in alike)


def _words(row: TableRow) -> str:
    return setting_words(row.setting)


def _batches(first: TableRow, last: TableRow) -> str:
    start, end = first.decode_batch_from, last.decode_batch_to
    if end is None:
        return "any number of requests" if start == 1 else f"{start} and more"
    return str(start) if start == end else f"{start}-{end}"
