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
from specctl.estimate.profiled_cost import ProfiledStepCost

__all__ = ["cost_model"]

logger = logging.getLogger("specctl.controller")


def cost_model(
    target: str, capabilities: Capabilities | None, profiles: Sequence[EngineProfile]
) -> StepCostModel:
    """Learned from nothing, but where a profile of the server is at hand."""
    learned = FittedStepCost(experts=Experts.of(capabilities))
    if capabilities is None or not profiles:
        return learned
    profile, words = profile_of(profiles, capabilities)
    logger.log(logging.WARNING if profile is None else logging.INFO, "%s: %s", target, words)
    return learned if profile is None else ProfiledStepCost(CostCurve.of_profile(profile))
