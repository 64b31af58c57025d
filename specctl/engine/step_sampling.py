"""Which steps run a row's sample: chosen by a counter, so that neither traffic nor time decides."""

from __future__ import annotations

from specctl.contract.setting import Setting
from specctl.contract.table import TableRow

__all__ = ["StepSampler"]


class StepSampler:
    """Counts an engine's steps. Ranks that take the same steps by the same rows sample the same ones."""

    def __init__(self, off_steps: int = 1, draft_steps: int = 1) -> None:
        """off_steps: how many steps in a row a sample of 0 drafts takes beside steps that draft; draft_steps:
        a sample of drafts beside steps without, where the first one holds what a head at rest has missed. It
        then comes that much more rarely, so that its price is the same."""
        self._off_steps, self._draft_steps = off_steps, draft_steps
        self._steps_since = 0
        """Steps since the last sample, of whichever row: a table that is replaced does not start over."""
        self._steps_left = 0
        """Of the sample that has begun."""

    def next_setting(self, row: TableRow) -> tuple[Setting, bool]:
        """What the next step runs under this row, and whether it is the row's sample."""
        self._steps_since += 1
        sample = row.sample
        if sample is None:
            self._steps_left = 0
            return row, False
        in_a_row = self._in_a_row(sample.setting.num_speculative_tokens, row.num_speculative_tokens)
        if 0 < self._steps_left < in_a_row:
            self._steps_left -= 1
        elif self._steps_since < sample.every_steps * in_a_row:
            self._steps_left = 0
            return row, False
        else:
            self._steps_left = in_a_row - 1
        self._steps_since = 0
        return sample.setting, True

    def _in_a_row(self, sampled: int, usual: int) -> int:
        """Steps of a sample of so many drafts in a row of so many."""
        if sampled == 0 < usual:
            return self._off_steps
        return self._draft_steps if usual == 0 < sampled else 1
