"""Rows of a new table: what was decided, and everything else as it is in the table in force. Pure.

Decisions are by decode batch. Rows that begin beyond context 0 are somebody's rule for long contexts: nobody
decides about them here, so they are carried over as they stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specctl.contract.setting import KNOBS, RowSample, Setting, knobs_of
from specctl.contract.table import TableRow

__all__ = ["DecidedSetting", "row_at", "rows_with"]


class DecidedSetting(NamedTuple):
    """A setting for decode batches from ``first`` up to where the next one begins."""

    first: int
    setting: Setting
    sample: RowSample | None = None


class _Part(NamedTuple):
    """A row from no context on, without its decode batches."""

    setting: Setting
    context_to: int | None
    sample: RowSample | None

    def row(self, batch_from: int, batch_to: int | None, known: TableRow | None) -> TableRow:
        """``known``: of the table in force, taken where it says the same."""
        bounds = batch_to, self.context_to, self.sample
        if (
            known is not None
            and bounds == (known.decode_batch_to, known.context_to_tokens, known.sample)
            and knobs_of(known) == knobs_of(self.setting)
        ):
            return known
        return TableRow(
            **dict(zip(KNOBS, knobs_of(self.setting), strict=True)),
            decode_batch_from=batch_from,
            decode_batch_to=batch_to,
            context_to_tokens=self.context_to,
            sample=self.sample,
        )


def row_at(rows: Iterable[TableRow], decode_batch: int, context_tokens: int = 0) -> TableRow | None:
    """The row that covers a decode batch at a context; None: no row does."""
    for row in rows:
        is_batch = row.decode_batch_from <= decode_batch and decode_batch <= (
            row.decode_batch_to or decode_batch
        )
        upper = row.context_to_tokens
        if (
            is_batch
            and row.context_from_tokens <= context_tokens
            and (upper is None or context_tokens <= upper)
        ):
            return row
    return None


def rows_with(in_force: Sequence[TableRow], decided: Sequence[DecidedSetting]) -> tuple[TableRow, ...]:
    """The whole table. ``decided`` begins at decode batch 1; ``in_force`` tiles all batches and contexts.

    Neighbouring ranges of batches become one row where they are alike. Rules are not cut where those are: an
    engine takes so many rows and no more.
    """
    rules = [row for row in in_force if row.context_from_tokens > 0]
    known = {row.decode_batch_from: row for row in in_force if row.context_from_tokens == 0}
    merged: list[tuple[int, _Part]] = []
    for start in sorted({one.first for one in decided} | known.keys()):
        part = _part(start, in_force, decided)
        if not merged or merged[-1][1] != part:
            merged.append((start, part))
    ends = [start - 1 for start, _ in merged[1:]]
    lowest = [
        part.row(start, end, known.get(start))
        for (start, part), end in zip(merged, [*ends, None], strict=True)
    ]
    return tuple(sorted([*lowest, *rules], key=lambda row: (row.decode_batch_from, row.context_from_tokens)))


def _part(start: int, in_force: Sequence[TableRow], decided: Sequence[DecidedSetting]) -> _Part:
    found = next(one for one in reversed(decided) if one.first <= start)
    lowest = row_at(in_force, start)
    return _Part(found.setting, None if lowest is None else lowest.context_to_tokens, found.sample)
