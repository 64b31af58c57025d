"""What a server's steps took, read again and again."""

from __future__ import annotations

from specctl.contract.telemetry import Telemetry, TelemetryCell
from specctl.engine_api.client import EngineClient
from specctl.engine_api.deltas import CounterReset, cell_deltas
from specctl.errors import TargetError

__all__ = ["StepReader", "decode_steps"]


class StepReader:
    """``rows``: every cell's gain between two polls."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._before: Telemetry | None = None
        self.rows: list[TelemetryCell] = []

    @property
    def latest(self) -> Telemetry:
        """Of the last poll."""
        if self._before is None:
            raise RuntimeError("poll first")
        return self._before

    async def poll(self) -> tuple[TelemetryCell, ...]:
        """What was gained since the last poll. Raises TargetError where the server restarted or its counters
        fell: what was measured before is then of no use."""
        telemetry = await self._client.telemetry()
        before, self._before = self._before, telemetry
        if before is None:
            return ()
        try:
            gained = cell_deltas(before, telemetry)
        except CounterReset as error:
            raise TargetError(f"{self._client.target}: restarted while it was measured: {error}") from error
        self.rows += gained
        return gained


def decode_steps(rows: tuple[TelemetryCell, ...] | list[TelemetryCell]) -> int:
    """Steps without any prompt."""
    return sum(row.steps for row in rows if not row.has_prefill)
