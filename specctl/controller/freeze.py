"""The freeze switch: a decision that keeps the table in force. No I/O, no clock."""

from __future__ import annotations

from dataclasses import replace

from specctl.contract.table import AppliedTable
from specctl.controller.core import merged_rows
from specctl.controller.least_chances import row_settings
from specctl.controller.state import Probe
from specctl.types import BucketChoice, Decision, Reason

__all__ = ["frozen"]

EXPLANATION = "nothing is changed, the table in force is held"


def frozen(decision: Decision, applied: AppliedTable, probe: Probe | None) -> tuple[Decision, Probe | None]:
    """``decision`` with every setting as it is in force.

    Args:
        probe: ran when the freeze began; its bucket goes back to the value that it came from.

    Returns the probe again as long as its value is in force.
    """
    bounds = [(choice.decode_batch_from, choice.decode_batch_to) for choice in decision.choices]
    settings = row_settings(applied.rows, bounds)
    choices = tuple(
        _kept(choice, probe)._replace(min_token_prob=settings[choice.decode_batch_to][1])
        for choice in decision.choices
    )
    is_probing = any(choice.is_change for choice in choices)
    held = replace(
        decision,
        rows=merged_rows(choices) if is_probing else applied.rows,
        reason=Reason.PROBE_END if is_probing else Reason.FROZEN,
        explanation=f"the probe ends; then {EXPLANATION}" if is_probing else EXPLANATION,
        choices=choices,
        predicted_tokens_per_s=None,
    )
    return held, probe if is_probing else None


def _kept(choice: BucketChoice, probe: Probe | None) -> BucketChoice:
    value, reason = choice.from_num_speculative_tokens, Reason.FROZEN
    if probe is not None and (choice.decode_batch_to, value) == (
        probe.bucket_to,
        probe.num_speculative_tokens,
    ):
        value, reason = probe.resume_num_speculative_tokens, Reason.PROBE_END
    return choice._replace(
        num_speculative_tokens=value, reason=reason, predicted_tokens_per_s=None, detail=""
    )
