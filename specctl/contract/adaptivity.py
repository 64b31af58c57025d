"""What an engine adapts by itself, beside the table: its own choice of how much is drafted or verified."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specctl.contract.bounds import Message, Short

__all__ = ["AdaptivityState", "EngineAdaptivity"]


class EngineAdaptivity(Message):
    """What this start of the engine can adapt; of the capabilities."""

    name: Short = Field(description="the engine's own option, for example enable_adaptive_verification")
    decides: Literal["drafted", "verified"] = Field(
        description="how many tokens are drafted for a request, or how many of the drafted ones are verified"
    )
    is_bounded: bool = Field(
        description="a row's num_speculative_tokens is the most that it may decide on, and 0 turns it off"
    )
    is_replaced: bool = Field(default=False, description="the table has taken its place: it decides nothing")


class AdaptivityState(Message):
    """Now; of the telemetry."""

    is_on: bool
    num_speculative_tokens: int | None = Field(
        default=None, ge=0, description="what it decided on for the last step; None: the cells tell"
    )
