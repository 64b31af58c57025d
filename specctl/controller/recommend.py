"""What can be said about a server without the plugin, from its own /metrics alone."""

from __future__ import annotations

from specctl.controller.explain import acceptance_words
from specctl.controller.state import ControllerState
from specctl.policy.base import Policy
from specctl.types import Decision, Observation, Reason, SurvivalEstimate

__all__ = ["recommend"]

POSITIONS_MAX = 32
# Without step seconds the break-even acceptance is unknown; a position that is accepted this seldom pays only
# on a nearly idle server.
WORTH_SURVIVAL = 0.2
NO_PLUGIN = "cannot act: the server runs without the specctl plugin"


def recommend(observation: Observation, state: ControllerState, policy: Policy) -> Decision:
    survival = state.survival.estimate(POSITIONS_MAX)
    if survival is None or survival.trials < policy.guard_rails.min_samples_tokens:
        if observation.stock is not None and observation.stock.drafts is None:
            words = f"{NO_PLUGIN}, and it does not draft (no speculative_config): nothing to recommend"
            return Decision(observation.target, observation.time_s, None, Reason.NOT_CONTROLLABLE, words)
        words = f"{NO_PLUGIN}; too few drafts seen for a recommendation"
        return Decision(observation.target, observation.time_s, None, Reason.FEW_SAMPLES, words)
    configured = survival.measured_positions
    words = f"{NO_PLUGIN}; {_advice(survival, configured)} ({acceptance_words(survival)})"
    return Decision(
        observation.target, observation.time_s, None, Reason.RECOMMENDATION, words, survival=survival
    )


def _advice(survival: SurvivalEstimate, configured: int) -> str:
    worth = sum(1 for value in survival.survival_at[:configured] if value >= WORTH_SURVIVAL)
    tokens = 1.0 + survival.accepted_tokens(configured)
    seen = f"a step with a draft emits {tokens:.1f} tokens at num_speculative_tokens {configured}"
    limits = "step seconds and steps without drafts are not visible here, so the gain is not known"
    if worth == 0:
        return f"{seen}: recommends to turn speculation off; {limits}"
    if worth < configured:
        return f"{seen}: recommends num_speculative_tokens {worth}, later ones are seldom accepted; {limits}"
    return f"{seen}: recommends to keep it, or to try more; {limits}"
