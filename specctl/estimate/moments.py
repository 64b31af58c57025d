"""Sums over steps from which mean, variance and covariance of step seconds and verified tokens follow."""

from __future__ import annotations

from operator import add
from typing import NamedTuple

from specctl.types import CellDelta

__all__ = ["Moments"]


class Moments(NamedTuple):
    """Discounted sums; s is seconds of a step, v its verified tokens.

    A named tuple: a look makes a hundred, and a frozen dataclass takes four times as long to make.
    """

    steps: float = 0.0
    request_steps: float = 0.0
    s: float = 0.0
    ss: float = 0.0
    v: float = 0.0
    vv: float = 0.0
    sv: float = 0.0

    @classmethod
    def of(cls, cell: CellDelta) -> Moments:
        return cls(
            steps=float(cell.steps),
            request_steps=float(cell.request_steps),
            s=cell.step_s,
            ss=cell.step_s_squared,
            v=float(cell.verified_tokens),
            vv=cell.verified_tokens_squared,
            sv=cell.step_s_by_verified_tokens,
        )

    def plus(self, other: Moments) -> Moments:
        return Moments._make(map(add, self, other))

    def scaled(self, factor: float) -> Moments:
        return Moments._make([value * factor for value in self])

    def at_mean(self) -> Moments:
        """As if every step had been the mean one: without variance and covariance."""
        steps, request_steps, s, _, v, _, _ = self
        return Moments(steps, request_steps, s, s * s / steps, v, v * v / steps, s * v / steps)

    @property
    def mean_s(self) -> float:
        return self.s / self.steps

    @property
    def mean_v(self) -> float:
        return self.v / self.steps

    @property
    def mean_batch(self) -> float:
        return self.request_steps / self.steps

    @property
    def var_s(self) -> float:
        return max(self.ss / self.steps - self.mean_s**2, 0.0)

    @property
    def var_v(self) -> float:
        return max(self.vv / self.steps - self.mean_v**2, 0.0)

    @property
    def cov_sv(self) -> float:
        return self.sv / self.steps - self.mean_s * self.mean_v
