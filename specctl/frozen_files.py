"""What a daemon answers to GET /frozen: its policy files and its targets file, as they are in force."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["FROZEN_ROUTE", "FrozenFile", "FrozenFiles"]

FROZEN_ROUTE = "/frozen"
_MESSAGE = ConfigDict(extra="ignore", frozen=True)


class FrozenFile(BaseModel):
    model_config = _MESSAGE

    path: str = Field(max_length=4096, description="resolved: without links")
    frozen: bool = Field(description="as the daemon took the file last")
    targets: int = Field(default=0, ge=0, description="whose tables the file decides on")
    unsettled_targets: int = Field(
        default=0, ge=0, description="whose poll in progress began before: a change may still come of it"
    )
    refusal: str | None = Field(
        default=None, description="why the file on disk is not the one in force; None: it is"
    )


class FrozenFiles(BaseModel):
    model_config = _MESSAGE

    files: tuple[FrozenFile, ...] = Field(max_length=10_000)
