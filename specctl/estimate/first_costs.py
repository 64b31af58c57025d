"""What a target's step costs begin with."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from specctl.contract.capabilities import Capabilities
from specctl.engine_profile import EngineProfile, profile_of
from specctl.estimate.base import StepCostModel
from specctl.estimate.cost_curve import CostCurve
from specctl.estimate.experts import Experts
from specctl.estimate.fitted_cost import FittedStepCost

__all__ = ["cost_model"]

logger = logging.getLogger("specctl.controller")


def cost_model(
    target: str, capabilities: Capabilities | None, profiles: Sequence[EngineProfile]
) -> StepCostModel:
    """Learned from nothing, but where a profile of the server is at hand."""
    experts = Experts.of(capabilities)
    if capabilities is None or not profiles:
        return FittedStepCost(experts=experts)
    profile, words = profile_of(profiles, capabilities)
    logger.log(logging.WARNING if profile is None else logging.INFO, "%s: %s", target, words)
    if profile is None:
        return FittedStepCost(experts=experts)
    return FittedStepCost.begun_with(CostCurve.of_profile(profile), experts)
