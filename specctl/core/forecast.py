"""Estimates -> what every setting would give in every bucket, against the setting in force. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specctl.core.acceptance import AcceptanceEstimate
from specctl.core.objective import Objective
from specctl.core.space import Bools, Floats, Ints, Space
from specctl.core.step_cost import StepCostEstimate

__all__ = ["Forecast", "forecast"]


@dataclass(frozen=True)
class Forecast:
    """Arrays are [bucket, setting] unless said. NaN: not known.

    ``tokens``: emitted by a step of the bucket. ``price``: what a step costs, in the objective's unit
    (seconds, or money). ``gain``: tokens gained over the setting in force, as a share of its own, once the
    price is paid at the exchange rate of the best setting. ``sigma``: standard error of the gain.
    """

    space: Space
    present: Ints
    is_active: Bools
    tokens: Floats
    price: Floats
    gain: Floats
    sigma: Floats
    acceptance: AcceptanceEstimate
    cost: StepCostEstimate

    @cached_property
    def gain_rows(self) -> list[list[float]]:
        """By bucket: lists, as rows are short and read one number at a time."""
        found: list[list[float]] = self.gain.tolist()
        return found

    @cached_property
    def sigma_rows(self) -> list[list[float]]:
        found: list[list[float]] = self.sigma.tolist()
        return found

    @cached_property
    def rate_rows(self) -> list[list[float]]:
        """Tokens per second of decode-only steps, with the prompts' steps between them."""
        found: list[list[float]] = (self.tokens / self.cost.cycle_s).tolist()
        return found


def forecast(
    space: Space,
    present: Ints,
    is_active: Bools,
    acceptance: AcceptanceEstimate,
    cost: StepCostEstimate,
    objective: Objective,
    eligible: Bools,
) -> Forecast:
    """
    Args:
        present, is_active: setting in force, and whether steps ran in the last interval; by bucket.
        objective: what a step costs. Prompts' steps of their own are in its price.
        eligible: settings that may be chosen, by setting or by bucket and setting.

    A second is worth what the best eligible setting would emit in it. Steps with prompts pay the prompts in
    any case, so there drafts compete only with what decoding takes of them.
    """
    # Of a usual step, what its prompts cost left out; of a decode-only one.
    price = objective.price(cost.decoding_s + cost.prompt_s, cost.verified)
    plain_price = objective.price(cost.cycle_s, cost.verified)
    tokens = cost.batch[:, None] * acceptance.emitted[None, :]
    here = np.arange(len(present)), present
    may = np.broadcast_to(eligible, tokens.shape).copy()
    may[here] = True
    rate = np.where(may & np.isfinite(plain_price), tokens / plain_price, 0.0).max(axis=1)
    own = tokens[here][:, None]
    gain = (tokens - own - rate[:, None] * (price - price[here][:, None])) / own
    sigma = _sigma(acceptance, cost, present, tokens / own, rate[:, None] * plain_price / own)
    return Forecast(space, present, is_active, tokens, price, gain, sigma, acceptance, cost)


def _sigma(
    acceptance: AcceptanceEstimate,
    cost: StepCostEstimate,
    present: Ints,
    relative_tokens: Floats,
    relative_price: Floats,
) -> Floats:
    """Of the gain: of the tokens, and of the seconds of steps without prompts and with them."""
    known = present.tolist()
    variances = {base: acceptance.log_ratio_var(base) for base in set(known)}
    of_tokens = np.array([variances[base] for base in known]) * relative_tokens**2
    here = np.arange(len(present)), present
    plain_share = 1.0 - cost.mixed_share[:, None]
    of_seconds = relative_price**2 * ((plain_share * cost.sigma) ** 2 + cost.mixed_sigma**2)
    sigma: Floats = np.sqrt(of_tokens + of_seconds + of_seconds[here][:, None])
    sigma[here] = 0.0
    return sigma
