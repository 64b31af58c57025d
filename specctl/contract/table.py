"""The speculation table: how many tokens are drafted, by decode batch and context."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from specctl.contract.bounds import BootId, Short
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import CLASS_LIMITS_MAX, ClassLimit
from specctl.contract.setting import RowSample, Setting
from specctl.errors import TableError
from specctl.plain_text import plain_text

__all__ = [
    "AppliedTable",
    "Refusal",
    "SpeculationTable",
    "TablePut",
    "TableRow",
    "TableState",
    "legal_settings",
    "limit_refusals",
    "setting_refusal",
    "uniform_rows",
]

ROWS_MAX = 256
RANKS_MAX = 4096
REASON_MAX = 512
Label = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[\x20-\x7e]+$")]
Reason = Annotated[str, StringConstraints(max_length=REASON_MAX)]


class TableRow(Setting):
    """One rectangle of the table and its setting; all bounds are inclusive, None is unbounded."""

    decode_batch_from: int = Field(ge=1, le=1_000_000)
    decode_batch_to: int | None = Field(default=None, ge=1, le=1_000_000)
    context_from_tokens: int = Field(default=0, ge=0, le=1_000_000_000)
    context_to_tokens: int | None = Field(default=None, ge=0, le=1_000_000_000)
    sample: RowSample | None = Field(
        default=None, description="another setting, run on a few of the row's steps; None: no samples"
    )

    @property
    def setting(self) -> Setting:
        return Setting(
            num_speculative_tokens=self.num_speculative_tokens,
            tree_topk=self.tree_topk,
            verify_width_tokens=self.verify_width_tokens,
            min_token_prob=self.min_token_prob,
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
    rows: tuple[TableRow, ...] = Field(min_length=1, max_length=ROWS_MAX, strict=False)
    lease_s: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="None: the table stays until it is replaced"
    )
    fallback_num_speculative_tokens: int | None = Field(
        default=None,
        ge=0,
        description="what holds for every decode batch once the lease has run out; None: the table that the "
        "server was started with",
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
    boot_id: BootId
    version: int
    state: TableState
    method: Short
    rows: tuple[TableRow, ...] = Field(
        min_length=1,
        max_length=ROWS_MAX,
        fail_fast=True,
        description="as applied; the fallback's once it holds",
    )
    fallback_num_speculative_tokens: int | None = Field(description="None: the start table")
    start_rows: tuple[TableRow, ...] = Field(
        default=(),
        max_length=ROWS_MAX,
        fail_fast=True,
        description="the table that the server was started with; it is put back by a clean stop",
    )
    lease_s: float | None
    lease_remaining_s: float | None
    owner: Short | None
    reason: Annotated[str, AfterValidator(lambda text: plain_text(text, REASON_MAX))]
    age_s: float = Field(description="seconds since this version was applied")
    class_limits: tuple[ClassLimit, ...] = Field(
        default=(),
        max_length=CLASS_LIMITS_MAX,
        fail_fast=True,
        description="they hold until the next PUT, also once the fallback holds",
    )
    ranks_behind: tuple[int, ...] = Field(
        default=(),
        max_length=RANKS_MAX,
        fail_fast=True,
        description="data-parallel ranks that hold another table, until the next PUT",
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


def legal_settings(capabilities: Capabilities) -> tuple[Setting, ...]:
    """Every setting that a row may name, ``min_token_prob`` apart. Chains, where the engine lists none."""
    return capabilities.settings or tuple(
        Setting(num_speculative_tokens=number) for number in capabilities.num_speculative_tokens_legal
    )


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
