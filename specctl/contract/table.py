"""The speculation table: how many tokens are drafted, by decode batch and context."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from specctl.contract.bounds import BootId, Change, Message, Short
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import CLASS_LIMITS_MAX, ClassLimit
from specctl.contract.setting import RowSample, Setting
from specctl.plain_text import plain_text

__all__ = [
    "AppliedTable",
    "Refusal",
    "TablePut",
    "TableRow",
    "TableState",
    "legal_settings",
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


class Refusal(Message):
    """Why a part of a table cannot be applied. ``row`` is None for the table as a whole."""

    row: int | None
    field: str
    reason: str

    def __str__(self) -> str:
        where = self.field if self.row is None else f"rows[{self.row}].{self.field}"
        return f"{where}: {self.reason}"


class TablePut(Change):
    """A change of the whole table (PUT /specctl/v1/table)."""

    base_version: int = Field(ge=0, description="version the writer read; another one is a conflict")
    rows: tuple[TableRow, ...] = Field(min_length=1, max_length=ROWS_MAX, strict=False)
    lease_s: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="None: the table stays until it is replaced"
    )
    fallback_num_speculative_tokens: int | None = Field(
        default=None,
        ge=0,
        le=1024,
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


class AppliedTable(Message):
    """What the engine looks up now (GET /specctl/v1/table, and the answer to a PUT)."""

    contract_version: int
    boot_id: BootId
    version: int = Field(ge=0)
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


def uniform_rows(num_speculative_tokens: int, tree_topk: int = 1) -> tuple[TableRow, ...]:
    """The table with one value for every decode batch and context."""
    return (
        TableRow(decode_batch_from=1, num_speculative_tokens=num_speculative_tokens, tree_topk=tree_topk),
    )


def legal_settings(capabilities: Capabilities) -> tuple[Setting, ...]:
    """Every setting that a row may name, ``min_token_prob`` apart. Chains, where the engine lists none."""
    return capabilities.settings or tuple(
        Setting(num_speculative_tokens=number) for number in capabilities.num_speculative_tokens_legal
    )
