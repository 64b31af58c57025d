"""What can be said about a server without the plugin, from its own /metrics alone."""

from __future__ import annotations

from specctl.core.messages import Plan, Reason
from specctl.core.soundness import DRAFTS_MIN
from specctl.types import Observation

__all__ = ["recommend"]

WORTH_SURVIVAL = 0.2
"""Without step seconds the break-even acceptance is unknown; a depth accepted this seldom pays only on a
nearly idle server."""
NO_PLUGIN = "cannot act: the server runs without the specctl plugin"


def recommend(observation: Observation) -> Plan:
    """Of one interval's drafts: a recommendation is repeated now and then, not followed."""
    why = observation.why_not_act or NO_PLUGIN
    stock = observation.stock

    def plan(reason: Reason, words: str) -> Plan:
        return Plan(observation.target, observation.time_s, reason, words)

    if stock is None or stock.drafts is None or stock.accepted_at is None:
        if stock is not None and stock.drafts is None:
            words = f"{why}, and it does not draft (no speculative_config): nothing to recommend"
            return plan(Reason.NOT_CONTROLLABLE, words)
        return plan(Reason.NOT_CONTROLLABLE, why)
    if stock.drafts < DRAFTS_MIN:
        return plan(Reason.FEW_SAMPLES, f"{why}; too few drafts for a recommendation")
    survival = [accepted / stock.drafts for accepted in stock.accepted_at]
    return plan(Reason.RECOMMENDATION, f"{why}; {_advice(survival)}")


def _advice(survival: list[float]) -> str:
    worth = sum(1 for value in survival if value >= WORTH_SURVIVAL)
    seen = f"a step with a draft emits {1.0 + sum(survival):.1f} tokens at a depth of {len(survival)}"
    limits = "step seconds and steps without drafts are not visible here, so the gain is not known"
    if worth == 0:
        return f"{seen}: recommends to turn speculation off; {limits}"
    if worth < len(survival):
        return f"{seen}: recommends num_speculative_tokens {worth}, later ones are seldom accepted; {limits}"
    return f"{seen}: recommends to keep it, or to try more; {limits}"
