"""The lines of a telemetry log: JSON objects, one a line, told apart by ``kind``.

A log is one or more recordings, each a header and what followed. ``time_s`` is the recorder's monotonic
seconds since its header.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable
from specctl.contract.telemetry import Telemetry
from specctl.engine_api.stock_metrics import LoadCounters

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "CapabilitiesLine",
    "End",
    "EndReason",
    "Header",
    "Line",
    "Reading",
    "Unreachable",
]

FORMAT = "specctl telemetry log"
FORMAT_VERSION = 1
EndReason = Literal["asked", "time", "size"]
_Seconds = Annotated[float, Field(ge=0)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Header(_Line):
    """Always a recording's first line. A changed meaning changes ``version``."""

    kind: Literal["header"] = "header"
    format: Literal["specctl telemetry log"] = "specctl telemetry log"
    version: int = FORMAT_VERSION
    specctl_version: str
    target: str
    every_s: float = Field(gt=0)
    utc: str = Field(description="wall clock at time_s 0, ISO 8601")


class CapabilitiesLine(_Line):
    """What the engine can do; again after each of its starts. None: it runs without the plugin.

    ``restarted_from``: boot_id of the process before, where the recorder knew one.
    """

    kind: Literal["capabilities"] = "capabilities"
    time_s: _Seconds
    capabilities: Capabilities | None
    restarted_from: str | None = None


class Reading(_Line):
    """One look. ``telemetry.cells`` holds the cells that changed since the reading before; the first reading
    after a ``CapabilitiesLine`` holds all. ``table``: what is in force, likewise when it changed. ``gaps``:
    why a part is None."""

    kind: Literal["reading"] = "reading"
    time_s: _Seconds
    telemetry: Telemetry | None
    load: LoadCounters | None
    table: AppliedTable | None = None
    gaps: tuple[str, ...] = ()


class Unreachable(_Line):
    """Looks failed from here on until the next line; again when the reason changes."""

    kind: Literal["unreachable"] = "unreachable"
    time_s: _Seconds
    reason: str


class End(_Line):
    """The recorder stopped by itself: asked by a signal, its time was over, or the log reached its size."""

    kind: Literal["end"] = "end"
    time_s: _Seconds
    reason: EndReason


Line = Annotated[Header | CapabilitiesLine | Reading | Unreachable | End, Field(discriminator="kind")]
