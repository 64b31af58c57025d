"""Experts of a mixture-of-experts target that a step's tokens wake: each is read from memory once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from specctl.contract.capabilities import Capabilities

__all__ = ["Experts"]


@dataclass(frozen=True, slots=True)
class Experts:
    """Of one layer: how many there are, and how many each token goes to."""

    total: int
    per_token: int

    @classmethod
    def of(cls, capabilities: Capabilities | None) -> Self | None:
        """None: a dense target, or one that does not tell."""
        if capabilities is None or not capabilities.experts or not capabilities.experts_per_token:
            return None
        if capabilities.experts_per_token >= capabilities.experts:
            return None
        return cls(capabilities.experts, capabilities.experts_per_token)

    def distinct(self, tokens: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Expected number of different ones, float64 like ``tokens``, where tokens choose independently.

        Huang et al. 2025, "MoESD: Unveil Speculative Decoding's Potential for Accelerating Sparse MoE"
        (arXiv 2505.19645), on the activation of experts.
        """
        return np.asarray(self.total * (1.0 - (1.0 - self.per_token / self.total) ** tokens))
