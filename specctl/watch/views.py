"""What a daemon answers of its targets and its files, as JSON. None: not measured, or not known."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from specctl.contract.bounds import Message
from specctl.contract.setting import Setting

__all__ = [
    "API",
    "CONTROL_HEADER",
    "FROZEN_ROUTE",
    "BucketView",
    "ControlChange",
    "ControlRow",
    "DaemonView",
    "FrozenFile",
    "FrozenFiles",
    "LogLine",
    "Mode",
    "Overview",
    "Point",
    "TargetDetail",
    "TargetView",
]

API = "/api/v1"
FROZEN_ROUTE = "/frozen"
CONTROL_HEADER = "X-Specctl-Control"
"""Of a change: a form of another site cannot send it."""


class Mode(StrEnum):
    """Who decides on a target's table: its policy file, or an operator over it."""

    POLICY = "policy"
    FREEZE = "freeze"
    OFF = "off"
    DRY_RUN = "dry_run"
    TABLE = "table"


class Point(NamedTuple):
    """Of the history. ``time_s``: Unix time. ``num_speculative_tokens``: of the busiest bucket."""

    time_s: float
    running: int | None
    waiting: int | None
    emitted_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    off_tokens_per_s: float | None
    num_speculative_tokens: int | None


class BucketView(Message):
    """The decision for one decode-batch bucket. Rates are tokens per second of a step without prompts."""

    decode_batch_from: int
    decode_batch_to: int
    setting: Setting
    words: str = Field(description="the setting, for people")
    sample: str | None = Field(default=None, description="another setting that a few steps measure")
    is_active: bool = Field(description="steps ran since the last poll")
    reason: str
    detail: str = ""
    present_tokens_per_s: float | None = None
    off_tokens_per_s: float | None = None


class LogLine(Message):
    """A decision or an event. ``when``: ISO 8601, UTC."""

    when: str
    name: str = Field(description="a decision's reason, an event's name")
    words: str
    is_warning: bool = False
    version: int | None = Field(default=None, description="of the table that a decision put in force")


class TargetView(Message):
    """One target, a line of the server list. Rates and acceptance are of the last 30 s."""

    target: str
    instance: str = Field(description="host and port, as Prometheus names it")
    is_up: bool | None = Field(default=None, description="of the last poll; None: not polled yet")
    why_down: str | None = None
    polled_s: float | None = Field(default=None, description="Unix time of the last poll that succeeded")
    engine: str | None = None
    engine_version: str | None = None
    model: str | None = None
    method: str | None = None
    mode: Mode = Mode.POLICY
    is_frozen: bool = False
    running: int | None = None
    waiting: int | None = None
    decoding: int | None = None
    kv_cache_used_ratio: float | None = None
    emitted_tokens_per_s: float | None = Field(default=None, description="of the wall clock")
    decode_tokens_per_s: float | None = Field(default=None, description="of the seconds of decode steps")
    off_tokens_per_s: float | None = Field(
        default=None, description="predicted for the same steps with speculation off"
    )
    speedup_vs_off: float | None = Field(default=None, description="over minutes, half-life 10 minutes")
    num_speculative_tokens: int | None = Field(default=None, description="of the busiest bucket")
    setting: str | None = Field(default=None, description="of the busiest bucket, for people")
    acceptance_rate: float | None = None
    acceptance_length: float | None = None
    efficiency: float | None = Field(default=None, description="emitted / verified tokens while drafting")
    reason: str | None = Field(default=None, description="of the last decision")
    explanation: str | None = None
    table_version: int | None = None
    table_state: str | None = None
    table_owner: str | None = None
    lease_held: bool = Field(default=False, description="by this daemon")
    lease_ends_s: float | None = Field(default=None, description="Unix time; None: no lease")
    restart_advised: bool = False
    adaptivity: str | None = Field(default=None, description="what the engine adapts by itself, and to what")
    unsound: str | None = Field(default=None, description="what is wrong with the acceptance, likely why")
    failures: int = Field(default=0, description="of the plugin's own code in the engine")


class TargetDetail(TargetView):
    window_s: float
    buckets: tuple[BucketView, ...] = ()
    survival_at: tuple[float, ...] | None = None
    fallback: str | None = Field(default=None, description="what holds once the lease has run out")
    settings: tuple[str, ...] = Field(default=(), description="prepared on the server, for people")
    legal_tokens: tuple[int, ...] = ()
    why_not_controllable: str | None = None
    warnings: tuple[str, ...] = ()
    gaps: tuple[str, ...] = Field(default=(), description="what the last poll could not read")
    decisions: tuple[LogLine, ...] = Field(default=(), description="newest first")
    events: tuple[LogLine, ...] = Field(default=(), description="newest first")
    history: tuple[Point, ...] = Field(default=(), description="oldest first")


class DaemonView(Message):
    owner: str
    version: str
    time_s: float = Field(description="Unix time of this answer")
    is_dry_run: bool = False
    can_control: bool = Field(default=False, description="whether a control token is configured")


class Overview(Message):
    daemon: DaemonView
    targets: tuple[TargetView, ...]


class ControlRow(BaseModel):
    """A row of a table that an operator sets. ``decode_batch_to``: its last decode batch; None: all above."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    decode_batch_to: int | None = Field(default=None, ge=1, le=1_000_000)
    setting: Setting


class ControlChange(BaseModel):
    """What an operator sets over a target's policy, until the mode ``policy`` takes it back."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str = Field(max_length=2048)
    mode: Mode
    rows: tuple[ControlRow, ...] = Field(default=(), max_length=64, description="of the mode table")


class FrozenFile(Message):
    """A policy file or the targets file of a daemon, as it is in force."""

    path: str = Field(max_length=4096, description="resolved: without links")
    frozen: bool = Field(description="as the daemon took the file last")
    targets: int = Field(default=0, ge=0, description="whose tables the file decides on")
    unsettled_targets: int = Field(
        default=0, ge=0, description="whose poll in progress began before: a change may still come of it"
    )
    refusal: str | None = Field(
        default=None, description="why the file on disk is not the one in force; None: it is"
    )


class FrozenFiles(Message):
    """What a daemon answers to GET /frozen."""

    files: tuple[FrozenFile, ...] = Field(max_length=10_000)
