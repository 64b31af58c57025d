"""A setting: what one step of the engine does, as a table's row, its sample and the telemetry name it."""

from __future__ import annotations

from operator import attrgetter

from pydantic import Field

from specctl.contract.bounds import Change

__all__ = ["KNOBS", "RowSample", "Setting", "knobs_of"]

KNOBS = ("num_speculative_tokens", "tree_topk", "verify_width_tokens", "min_token_prob")
knobs_of = attrgetter(*KNOBS)
"""What a setting or a row says, as a tuple."""


class Setting(Change):
    """How much is drafted and verified for each request of a step."""

    num_speculative_tokens: int = Field(
        ge=0, le=1024, description="most drafted tokens in a row: the depth of a draft; 0 is off"
    )
    tree_topk: int = Field(default=1, ge=1, le=64, description="branches a depth; 1 is a chain")
    verify_width_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="positions the target scores for a request; None: as many as a chain of this depth "
        "has, depth + 1, or for a tree as many as were prepared",
    )
    min_token_prob: float | None = Field(
        default=None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="drafted tokens less likely to be accepted are not verified; None: as configured",
    )

    @property
    def width_tokens(self) -> int:
        """Positions the target scores for a request, as far as the setting itself says."""
        return self.verify_width_tokens or self.num_speculative_tokens + 1


class RowSample(Change):
    """Another setting that the engine runs on every so many steps of a row, to measure it."""

    setting: Setting
    every_steps: int = Field(
        ge=2,
        le=1_000_000,
        description="steps from one sample to the next, whichever row they ran",
    )
