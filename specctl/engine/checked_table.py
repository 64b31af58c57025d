"""Tables that are checked against what an engine can do, and compiled for lookup."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit
from specctl.contract.setting import RowSample, Setting
from specctl.contract.table import Refusal, TableRow, legal_settings
from specctl.errors import TableError

__all__ = ["SpeculationTable", "limit_refusals", "setting_refusal"]


class SpeculationTable:
    """A checked table, compiled for lookup: rows tile every decode batch and context exactly once."""

    def __init__(self, rows: Sequence[TableRow], capabilities: Capabilities) -> None:
        """Raises TableError with every refusal found."""
        refusals = [*_value_refusals(rows, capabilities), *_shape_refusals(rows)]
        if not refusals:
            refusals = _tiling_refusals(rows)
        if refusals:
            raise TableError(refusals)
        self.rows = tuple(rows)
        self._batch_starts = sorted({row.decode_batch_from for row in rows})
        self._context_starts = sorted({row.context_from_tokens for row in rows})
        self.is_context_free = len(self._context_starts) == 1
        self._cells = [
            [_row_at(rows, batch, context) for context in self._context_starts]
            for batch in self._batch_starts
        ]

    def lookup(self, decode_batch: int, mean_context_tokens: float = 0.0) -> int:
        """num_speculative_tokens for a step with ``decode_batch`` >= 1 decoding requests."""
        return self.lookup_row(decode_batch, mean_context_tokens).num_speculative_tokens

    def lookup_row(self, decode_batch: int, mean_context_tokens: float = 0.0) -> TableRow:
        """The row, with what else a step goes by."""
        by_context = self._cells[bisect_right(self._batch_starts, max(decode_batch, 1)) - 1]
        if self.is_context_free:
            return by_context[0]
        return by_context[bisect_right(self._context_starts, int(mean_context_tokens)) - 1]


def limit_refusals(limits: Sequence[ClassLimit], capabilities: Capabilities) -> list[Refusal]:
    """What of the rules for classes an engine cannot take."""
    most = capabilities.class_limits_max
    if len(limits) > most:
        reason = f"at most {most}, got {len(limits)}" if most else "this engine does not bound classes"
        return [Refusal(row=None, field="class_limits", reason=reason)]
    return [
        Refusal(row=None, field=f"class_limits[{i}]", reason="the classes of an earlier rule")
        for i, limit in enumerate(limits)
        if limit.classes in [earlier.classes for earlier in limits[:i]]
    ]


def setting_refusal(setting: Setting, capabilities: Capabilities) -> tuple[str, str] | None:
    """Field and reason why an engine cannot run this setting; None: it can.

    A width of None is the chain's own, or any prepared one of a tree.
    """
    legal, method = legal_settings(capabilities), capabilities.method
    number, topk, width = setting.num_speculative_tokens, setting.tree_topk, setting.verify_width_tokens
    numbers = sorted({one.num_speculative_tokens for one in legal})
    if number not in numbers:
        return "num_speculative_tokens", f"{number} is not one of {_listed(numbers)} ({method})"
    same_depth = [one for one in legal if one.num_speculative_tokens == number]
    topks = sorted({one.tree_topk for one in same_depth})
    if topk not in topks:
        why = f"; {capabilities.why_chains_only}" if capabilities.why_chains_only else ""
        words = f"{topk} is not one of {_listed(topks)} at a depth of {number} ({method}){why}"
        return "tree_topk", words
    widths = sorted({one.width_tokens for one in same_depth if one.tree_topk == topk})
    if width is not None and width not in widths:
        words = f"{width} is not one of {_listed(widths)} at a depth of {number} with {topk} branches"
        return "verify_width_tokens", words
    if setting.min_token_prob is not None and capabilities.min_token_prob is None:
        return "min_token_prob", f"the drafts of {method} cannot be chosen by their chances on this engine"
    return None


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _sample_refusal(sample: RowSample, capabilities: Capabilities) -> tuple[str, str] | None:
    least = capabilities.sample_every_min_steps
    if least is None:
        return "sample", f"steps of {capabilities.method} cannot be sampled on this engine"
    if sample.every_steps < least:
        return "sample.every_steps", f"at least {least}, got {sample.every_steps}"
    refused = setting_refusal(sample.setting, capabilities)
    return None if refused is None else (f"sample.setting.{refused[0]}", refused[1])


def _value_refusals(rows: Sequence[TableRow], capabilities: Capabilities) -> list[Refusal]:
    refusals = []
    if len(rows) > capabilities.rows_max:
        refusals.append(
            Refusal(row=None, field="rows", reason=f"at most {capabilities.rows_max}, got {len(rows)}")
        )
    for i, row in enumerate(rows):
        refused = [setting_refusal(row, capabilities)]
        if row.sample is not None:
            refused.append(_sample_refusal(row.sample, capabilities))
        refusals += [Refusal(row=i, field=one[0], reason=one[1]) for one in refused if one is not None]
    return refusals


def _shape_refusals(rows: Sequence[TableRow]) -> list[Refusal]:
    refusals = []
    for i, row in enumerate(rows):
        if row.decode_batch_to is not None and row.decode_batch_to < row.decode_batch_from:
            reason = f"{row.decode_batch_to} is under decode_batch_from {row.decode_batch_from}"
            refusals.append(Refusal(row=i, field="decode_batch_to", reason=reason))
        if row.context_to_tokens is not None and row.context_to_tokens < row.context_from_tokens:
            reason = f"{row.context_to_tokens} is under context_from_tokens {row.context_from_tokens}"
            refusals.append(Refusal(row=i, field="context_to_tokens", reason=reason))
    return refusals


def _tiling_refusals(rows: Sequence[TableRow]) -> list[Refusal]:
    """Every cell of the grid that the row bounds span must lie in exactly one row."""
    batches = {1} | {row.decode_batch_from for row in rows}
    batches |= {row.decode_batch_to + 1 for row in rows if row.decode_batch_to is not None}
    contexts = {0} | {row.context_from_tokens for row in rows}
    contexts |= {row.context_to_tokens + 1 for row in rows if row.context_to_tokens is not None}
    refusals = []
    for batch in sorted(batches):
        for context in sorted(contexts):
            owners = [i for i, row in enumerate(rows) if _covers(row, batch, context)]
            where = f"decode batch {batch}, context {context} tokens"
            if not owners:
                refusals.append(Refusal(row=None, field="rows", reason=f"hole: no row covers {where}"))
            elif len(owners) > 1:
                overlap = ", ".join(f"rows[{i}]" for i in owners)
                refusals.append(
                    Refusal(row=owners[1], field="rows", reason=f"overlap: {overlap} all cover {where}")
                )
            if len(refusals) >= 8:
                return refusals
    return refusals


def _covers(row: TableRow, batch: int, context: int) -> bool:
    return (
        row.decode_batch_from <= batch
        and (row.decode_batch_to is None or batch <= row.decode_batch_to)
        and row.context_from_tokens <= context
        and (row.context_to_tokens is None or context <= row.context_to_tokens)
    )


def _row_at(rows: Sequence[TableRow], batch: int, context: int) -> TableRow:
    return next(row for row in rows if _covers(row, batch, context))
