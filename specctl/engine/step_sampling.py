"""Which steps run a row's sample: chosen by a counter, so that neither traffic nor time decides."""

from __future__ import annotations

from specctl.contract.setting import Setting
from specctl.contract.table import TableRow

__all__ = ["StepSampler"]


class StepSampler:
    """Counts an engine's steps. Ranks that take the same steps by the same rows sample the same ones."""

    def __init__(self) -> None:
        self._steps_since = 0
        """Steps since the last sample, of whichever row: a table that is replaced does not start over."""

    def next_setting(self, row: TableRow) -> tuple[Setting, bool]:
        """What the next step runs under this row, and whether it is the row's sample."""
        self._steps_since += 1
        if row.sample is None or self._steps_since < row.sample.every_steps:
            return row, False
        self._steps_since = 0
        return row.sample.setting, True
