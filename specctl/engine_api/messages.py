"""The contract's messages as a daemon takes them: bounded, whatever a server sends.

Structure over a bound refuses the message; a text is cut and made printable.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator

from specctl.contract.capabilities import SETTINGS_MAX, Capabilities
from specctl.contract.classes import CLASS_LIMITS_MAX, TOLD_MAX, ClassLimit, TrafficClass
from specctl.contract.setting import Setting
from specctl.contract.table import AppliedTable, TableRow
from specctl.contract.telemetry import ShadowAcceptance, Telemetry, TelemetryCell
from specctl.errors import ContractError
from specctl.json_bounds import check_json
from specctl.plain_text import plain_text

__all__ = ["BoundedCapabilities", "BoundedTable", "BoundedTelemetry", "parsed"]

BUCKETS_MAX = 64
CELLS_MAX = 4096
ROWS_MAX = 256
RANKS_MAX = 4096
WARNINGS_MAX = 16
WARNING_CHARACTERS_MAX = 300
POSITIONS_MAX = 1024
PROPOSER_MAX = 64
_Message = TypeVar("_Message", bound=BaseModel)


def _boot_id(text: str) -> str:
    """Compared as it is, so that it is not made printable."""
    if not text.isprintable():
        raise ValueError("expected printable characters")
    return text


def _first_warnings(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        return value
    return [plain_text(one, WARNING_CHARACTERS_MAX) for one in value[:WARNINGS_MAX]]


def _first_counters(value: Any) -> Any:
    return dict(islice(value.items(), PROPOSER_MAX)) if isinstance(value, dict) else value


_BootId = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_boot_id)]
_Text = Annotated[str, AfterValidator(plain_text)]
_Short = Annotated[str, AfterValidator(lambda text: plain_text(text, 128))]
_Count = Annotated[int, Field(ge=1, le=1 << 40)]
_Positions = Annotated[tuple[int, ...], Field(max_length=POSITIONS_MAX, fail_fast=True)]


class BoundedCapabilities(Capabilities):
    engine: _Short
    engine_version: _Short
    plugin_version: _Short
    boot_id: _BootId
    model: _Text
    method: _Short
    why_not_controllable: _Text | None = None
    num_speculative_tokens_legal: tuple[Annotated[int, Field(ge=0, le=1024)], ...] = Field(
        min_length=1, max_length=1025, fail_fast=True
    )
    tree_topk_legal: tuple[int, ...] = Field(default=(), max_length=64, fail_fast=True)
    settings: tuple[Setting, ...] = Field(default=(), max_length=SETTINGS_MAX, fail_fast=True)
    why_chains_only: _Text | None = None
    decode_batch_max: int = Field(ge=1, le=1_000_000)
    context_max_tokens: _Count
    decode_batch_buckets: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        min_length=1, max_length=BUCKETS_MAX, fail_fast=True
    )
    rows_max: _Count
    lease_max_s: float = Field(gt=0, allow_inf_nan=False)
    warnings: Annotated[tuple[str, ...], BeforeValidator(_first_warnings)] = ()
    algorithms: tuple[_Short, ...] = Field(default=(), max_length=256, fail_fast=True)
    gpu: _Short | None = None
    dtype: _Short | None = None
    parallelism: _Short | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        for name in ("decode_batch_buckets", "num_speculative_tokens_legal"):
            if any(after <= before for before, after in pairwise(getattr(self, name))):
                raise ValueError(f"{name}: expected rising values")
        return self


class BoundedTable(AppliedTable):
    boot_id: _BootId
    method: _Short
    rows: tuple[TableRow, ...] = Field(min_length=1, max_length=ROWS_MAX, fail_fast=True)
    start_rows: tuple[TableRow, ...] = Field(default=(), max_length=ROWS_MAX, fail_fast=True)
    owner: _Short | None
    reason: Annotated[str, AfterValidator(lambda text: plain_text(text, 512))]
    class_limits: tuple[ClassLimit, ...] = Field(default=(), max_length=CLASS_LIMITS_MAX, fail_fast=True)
    ranks_behind: tuple[int, ...] = Field(default=(), max_length=RANKS_MAX, fail_fast=True)


class _Cell(TelemetryCell):
    drafted_at: _Positions
    accepted_at: _Positions
    accepted_rank_at: Annotated[
        tuple[Annotated[tuple[int, ...], Field(max_length=64, fail_fast=True)], ...],
        Field(max_length=POSITIONS_MAX, fail_fast=True),
    ] = ()


class _Class(TrafficClass):
    watched_at: _Positions
    drafted_at: _Positions
    reached_at: _Positions
    accepted_at: _Positions


class _Shadow(ShadowAcceptance):
    drafted_at: _Positions
    accepted_at: _Positions


class BoundedTelemetry(Telemetry):
    boot_id: _BootId
    cells: tuple[_Cell, ...] = Field(max_length=CELLS_MAX, fail_fast=True)
    classes: tuple[_Class, ...] | None = Field(default=None, max_length=TOLD_MAX, fail_fast=True)
    shadow: _Shadow | None = None
    proposer: Annotated[dict[str, float], BeforeValidator(_first_counters)] = Field(default_factory=dict)


def parsed(model: type[_Message], body: bytes, what: str) -> _Message:
    """``what`` names the message in errors. Raises ContractError."""
    try:
        check_json(body)
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        words = f"{where}: {first['msg']} ({error.error_count()} in all)"
    except ValueError as error:
        words = str(error)
    raise ContractError(plain_text(f"{what}: {words}"))
