"""The speculation table: how many tokens are drafted, by decode batch and context."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import CLASS_LIMITS_MAX, ClassLimit
from specctl.errors import TableError

__all__ = [
    "AppliedTable",
    "Refusal",
    "SpeculationTable",
    "TablePut",
    "TableRow",
    "TableState",
    "limit_refusals",
    "uniform_rows",
]

Label = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[\x20-\x7e]+$")]
Reason = Annotated[str, StringConstraints(max_length=512)]


class TableRow(BaseModel):
    """One rectangle of the table; all bounds are inclusive, None is unbounded."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    decode_batch_from: int = Field(ge=1, le=1_000_000)
    decode_batch_to: int | None = Field(default=None, ge=1, le=1_000_000)
    context_from_tokens: int = Field(default=0, ge=0, le=1_000_000_000)
    context_to_tokens: int | None = Field(default=None, ge=0, le=1_000_000_000)
    num_speculative_tokens: int = Field(ge=0, le=1024, description="most drafted tokens a request; 0 is off")
    tree_topk: int = Field(default=1, ge=1, le=64, description="branches a depth; 1 is a chain")
    verify_width_tokens: int | None = Field(
        default=None, ge=1, le=1024, description="positions the target scores; None: drafts + 1"
    )
    min_token_prob: float | None = Field(
        default=None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="drafted tokens less likely to be accepted are not verified; None: as configured",
    )


class Refusal(BaseModel):
    """Why a part of a table cannot be applied. ``row`` is None for the table as a whole."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    row: int | None
    field: str
    reason: str

    def __str__(self) -> str:
        where = self.field if self.row is None else f"rows[{self.row}].{self.field}"
        return f"{where}: {self.reason}"


class TablePut(BaseModel):
    """A change of the whole table (PUT /specctl/v1/table)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    base_version: int = Field(ge=0, description="version the writer read; another one is a conflict")
    rows: tuple[TableRow, ...] = Field(min_length=1, max_length=256, strict=False)
    lease_s: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="None: the table stays until it is replaced"
    )
    fallback_num_speculative_tokens: int = Field(
        ge=0, description="what holds for every decode batch once the lease has run out"
    )
    owner: Label = Field(description="who writes; another owner waits for the lease to end")
    reason: Reason = ""
    class_limits: tuple[ClassLimit, ...] = Field(
        default=(),
        max_length=CLASS_LIMITS_MAX,
        strict=False,
        description="the first that matches a request bounds its drafts, under whichever row",
    )


class TableState(StrEnum):
    START = "start"
    LIVE = "live"
    FALLBACK = "fallback"


class AppliedTable(BaseModel):
    """What the engine looks up now (GET /specctl/v1/table, and the answer to a PUT)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    contract_version: int
    boot_id: str
    version: int
    state: TableState
    method: str
    rows: tuple[TableRow, ...] = Field(description="as applied; the fallback's one row once it holds")
    fallback_num_speculative_tokens: int
    lease_s: float | None
    lease_remaining_s: float | None
    owner: str | None
    reason: str
    age_s: float = Field(description="seconds since this version was applied")
    class_limits: tuple[ClassLimit, ...] = Field(
        default=(), description="they hold until the next PUT, also once the fallback holds"
    )
    ranks_behind: tuple[int, ...] = Field(
        default=(), description="data-parallel ranks that hold another table, until the next PUT"
    )


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


def uniform_rows(num_speculative_tokens: int, tree_topk: int = 1) -> tuple[TableRow, ...]:
    """The table with one value for every decode batch and context."""
    return (
        TableRow(decode_batch_from=1, num_speculative_tokens=num_speculative_tokens, tree_topk=tree_topk),
    )


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


def _topk_refusal(topk: int, capabilities: Capabilities) -> str | None:
    method, legal = capabilities.method, capabilities.tree_topk_legal
    if topk > capabilities.tree_topk_max:
        return f"{method} drafts at most {capabilities.tree_topk_max} a depth, got {topk}"
    if legal and topk not in legal:
        return f"{topk} is not one of {', '.join(map(str, legal))} ({method})"
    return None


def _prob_refusal(prob: float | None, capabilities: Capabilities) -> str | None:
    if prob is None or capabilities.min_token_prob is not None:
        return None
    return f"the drafts of {capabilities.method} cannot be chosen by their chances on this engine"


def _value_refusals(rows: Sequence[TableRow], capabilities: Capabilities) -> list[Refusal]:
    refusals = []
    legal = capabilities.num_speculative_tokens_legal
    if len(rows) > capabilities.rows_max:
        refusals.append(
            Refusal(row=None, field="rows", reason=f"at most {capabilities.rows_max}, got {len(rows)}")
        )
    for i, row in enumerate(rows):
        if row.num_speculative_tokens not in legal:
            allowed = ", ".join(map(str, legal))
            refusals.append(
                Refusal(
                    row=i,
                    field="num_speculative_tokens",
                    reason=f"{row.num_speculative_tokens} is not one of {allowed} ({capabilities.method})",
                )
            )
        if (reason := _topk_refusal(row.tree_topk, capabilities)) is not None:
            refusals.append(Refusal(row=i, field="tree_topk", reason=reason))
        if (reason := _prob_refusal(row.min_token_prob, capabilities)) is not None:
            refusals.append(Refusal(row=i, field="min_token_prob", reason=reason))
        if row.tree_topk == 1 and row.verify_width_tokens not in (None, row.num_speculative_tokens + 1):
            refusals.append(
                Refusal(
                    row=i,
                    field="verify_width_tokens",
                    reason=f"a chain of {row.num_speculative_tokens} drafts verifies "
                    f"{row.num_speculative_tokens + 1} positions, got {row.verify_width_tokens}",
                )
            )
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
