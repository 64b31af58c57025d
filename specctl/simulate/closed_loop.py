"""A load that keeps requests in flight: the next one starts when one ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specctl.errors import SimulationInputError
from specctl.simulate.scenario import BIN_S

__all__ = ["BLOCK", "ClosedLoad", "by_bin"]

Ints = npt.NDArray[np.int64]
# Requests whose lengths are drawn together.
BLOCK = 8192
TOKENS_MIN, TOKENS_MAX = 8, 2000


@dataclass(frozen=True)
class ClosedLoad:
    """Lasts ``span_s`` of virtual time. A request that has started runs to its end.

    ``in_flight``: how many requests to keep in flight, by bin of BIN_S seconds; the last one holds on.
    ``pays_s``: (from, to) of the phases in which drafting pays again after it did not.
    Prompts and outputs are log-normal, from a seed, and bounded.
    """

    in_flight: Ints
    span_s: float
    pays_s: tuple[tuple[float, float], ...] = ()
    prompt_median_tokens: float = 200.0
    output_median_tokens: float = 200.0
    sigma: float = 0.7

    def __post_init__(self) -> None:
        if not len(self.in_flight) or self.in_flight.min() < 0 or not self.in_flight.any():
            raise SimulationInputError("in_flight: expected numbers of requests from 0, one of them over 0")
        if not 0 < self.span_s < float("inf"):
            raise SimulationInputError(f"span_s: expected seconds over 0, got {self.span_s}")

    @classmethod
    def constant(cls, requests: int, span_s: float) -> ClosedLoad:
        return cls(np.array([requests], np.int64), span_s)

    @property
    def tokens_max(self) -> int:
        """Of a prompt and its output together."""
        return 2 * TOKENS_MAX

    def lengths(self, block: int, seed: int) -> tuple[Ints, Ints]:
        """Prompt and output tokens of the requests from ``block * BLOCK`` on."""
        rng = np.random.default_rng([seed, 3, block])
        return self._drawn(rng, self.prompt_median_tokens), self._drawn(rng, self.output_median_tokens)

    def _drawn(self, rng: np.random.Generator, median_tokens: float) -> Ints:
        drawn = rng.lognormal(np.log(median_tokens), self.sigma, BLOCK)
        return drawn.clip(TOKENS_MIN, TOKENS_MAX).astype(np.int64)


def by_bin(span_s: float) -> npt.NDArray[np.float64]:
    """The beginning of every bin of a load that lasts ``span_s``."""
    return np.arange(int(np.ceil(span_s / BIN_S)), dtype=np.float64) * BIN_S
