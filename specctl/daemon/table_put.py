"""The tables that the daemon puts: of a plan, and at a clean stop."""

from __future__ import annotations

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TablePut, legal_settings, uniform_rows
from specctl.core.messages import Plan
from specctl.policy.models import AnyPolicy
from specctl.types import Observation

__all__ = ["put_at_stop", "put_of_plan"]

REASON_MAX = 512


def put_of_plan(observation: Observation, policy: AnyPolicy, plan: Plan, owner: str) -> TablePut:
    """Of an observation with a table in force, and a plan with rows."""
    applied, capabilities = observation.applied, observation.capabilities
    assert applied is not None
    assert capabilities is not None
    assert plan.rows is not None
    return TablePut(
        base_version=applied.version,
        rows=plan.rows,
        lease_s=min(policy.lease_s, capabilities.lease_max_s),
        fallback_num_speculative_tokens=_fallback(policy, capabilities),
        owner=owner,
        reason=f"{plan.reason.value}: {plan.explanation}"[:REASON_MAX],
        class_limits=plan.class_limits,
    )


def put_at_stop(
    applied: AppliedTable, capabilities: Capabilities, policy: AnyPolicy, owner: str, *, is_held: bool
) -> tuple[TablePut, str]:
    """Releases the lease and leaves what ``on_stop`` says, in words as well. ``is_held``: frozen."""
    rows, limits, words = applied.rows, applied.class_limits, "the last table stays"
    if policy.on_stop == "off" and 0 in _chains(capabilities) and not is_held:
        rows, words = uniform_rows(0), "speculation is off"
    elif policy.on_stop != "keep" and applied.start_rows and not is_held:
        rows, limits, words = applied.start_rows, (), "the start table is in force again"
    put = TablePut(
        base_version=applied.version,
        rows=tuple(row.model_copy(update={"sample": None}) for row in rows),
        fallback_num_speculative_tokens=_fallback(policy, capabilities),
        owner=owner,
        reason=f"the daemon stopped: {words}",
        class_limits=limits,
    )
    return put, words


def _fallback(policy: AnyPolicy, capabilities: Capabilities) -> int | None:
    """The largest prepared chain up to the policy's number; None: the server's start table."""
    wanted = policy.fallback_num_speculative_tokens
    if wanted is None:
        return None
    return max((n for n in _chains(capabilities) if n <= wanted), default=None)


def _chains(capabilities: Capabilities) -> set[int]:
    """Numbers that the engine takes without a width and branches: a fallback, and off at a stop."""
    return {one.num_speculative_tokens for one in legal_settings(capabilities) if one.tree_topk == 1}
