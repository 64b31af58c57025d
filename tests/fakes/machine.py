"""A server without a network: the controller polls it, and it runs the rows that it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from fakes.observations import applied, capabilities, cell, chains, observation

from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit
from specctl.contract.setting import Setting
from specctl.contract.table import TableRow, uniform_rows
from specctl.contract.telemetry import TelemetryCell
from specctl.core.controller import Controller
from specctl.core.messages import Plan
from specctl.core.rails import NOTHING_HELD, Held
from specctl.core.table_rows import row_at
from specctl.engine.checked_table import SpeculationTable
from specctl.policy.loader import parse_policy
from specctl.policy.models import AnyPolicy
from specctl.types import Observation

__all__ = ["Machine", "Steered", "policy"]

PROMPT_TOKEN_S = 2e-5


def policy(text: str = "kind: goodput") -> AnyPolicy:
    return parse_policy(text, "p.yaml")


def slower_when_full(batch: int, verified: int) -> float:
    """8 ms, and 0.2 ms for every token that is verified: drafts pay where few requests decode."""
    return 8e-3 + 2e-4 * verified


@dataclass
class Machine:
    """``accept``: chance of every depth's first choice once reached; ``rank_ratio``: of what is missed, the
    share that the next sibling hits. ``prompts``: of ten steps, those that hold 500 prompt tokens.
    """

    settings: tuple[Setting, ...] = chains(0, 1, 2, 4, 8)
    buckets: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    batch: int = 4
    accept: float = 0.8
    rank_ratio: float = 0.5
    step_s: Callable[[int, int], float] = slower_when_full
    noise: float = 0.02
    prompts: int = 0
    sample_every_min_steps: int | None = 2
    min_token_prob: float | None = None
    class_limits_max: int = 0
    rows: tuple[TableRow, ...] = uniform_rows(0)
    class_limits: tuple[ClassLimit, ...] = ()
    waiting: int = 0
    time_s: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(
            self.settings,
            self.buckets,
            sample_every_min_steps=self.sample_every_min_steps,
            min_token_prob=self.min_token_prob,
            class_limits_max=self.class_limits_max,
        )

    def at(self, batch: int | None = None) -> TableRow:
        row = row_at(self.rows, batch or self.batch or 1)
        assert row is not None
        return row

    def put(self, plan: Plan) -> None:
        """As an engine does it: raises TableError for rows that it cannot run."""
        assert plan.rows is not None
        self.rows = SpeculationTable(plan.rows, self.capabilities).rows
        assert len(plan.class_limits) <= self.class_limits_max
        self.class_limits = plan.class_limits

    def poll(self, seconds: float = 1.0) -> Observation:
        """A second of decoding."""
        self.time_s += seconds
        cells: list[TelemetryCell] = []
        row = self.at()
        sample, every = row.sample, row.sample.every_steps if row.sample else 10**9
        usual_s = self._seconds(row.setting)
        steps = max(round(seconds / usual_s), 1)
        sampled = round(steps / every)
        for setting, count, is_sample in (
            (row.setting, steps - sampled, False),
            (sample.setting if sample else row.setting, sampled, True),
        ):
            with_prompts = count * self.prompts // 10
            cells += self._ran(setting, count - with_prompts, is_sample=is_sample, prompt_tokens=0)
            cells += self._ran(setting, with_prompts, is_sample=is_sample, prompt_tokens=500)
        table = applied(self.rows, class_limits=self.class_limits)
        seen = observation(
            *cells, time_s=self.time_s, interval_s=seconds, capabilities=self.capabilities, applied=table
        )
        return replace(seen, waiting=self.waiting)

    def rate(self, setting: Setting, batch: int | None = None) -> float:
        """Tokens per second, exactly."""
        reached, tokens = 1.0, 1.0
        ranks = setting.tree_topk
        chance = 1.0 - (1.0 - self.accept) * (1.0 - self.rank_ratio) ** (ranks - 1)
        for _ in range(setting.num_speculative_tokens):
            reached *= chance
            tokens += reached
        many = batch or self.batch
        return many * tokens / self.step_s(many, many * setting.width_tokens)

    def best(self, batch: int | None = None) -> Setting:
        return max(self.settings, key=lambda one: self.rate(one, batch))

    def _seconds(self, setting: Setting) -> float:
        return self.step_s(self.batch, self.batch * setting.width_tokens)

    def _ran(
        self, setting: Setting, steps: int, *, is_sample: bool, prompt_tokens: int
    ) -> list[TelemetryCell]:
        if not steps or not self.batch:
            return []
        depth, topk = setting.num_speculative_tokens, setting.tree_topk
        requests, accepted, ranks = steps * self.batch, [], []
        reached = requests
        for _ in range(depth):
            chances = [self.accept]
            for _ in range(topk - 1):
                chances.append(self.rank_ratio * (1.0 - sum(chances)))
            hits = self.rng.multinomial(reached, [*chances, 1.0 - sum(chances)])[:-1]
            reached = int(hits.sum())
            accepted.append(reached)
            ranks.append(tuple(int(one) for one in hits))
        usual_s = self._seconds(setting) + prompt_tokens * PROMPT_TOKEN_S
        seconds = usual_s * np.exp(self.noise * self.rng.standard_normal(steps))
        last = next(upper for upper in self.buckets if self.batch <= upper)
        first = max([0, *(upper for upper in self.buckets if upper < last)]) + 1
        return [
            cell(
                decode_batch=self.batch,
                bucket=(first, last),
                tokens=depth,
                accepted_at=tuple(accepted),
                seconds=tuple(seconds.tolist()),
                topk=topk,
                width=setting.verify_width_tokens,
                ranks=tuple(ranks) if topk > 1 else (),
                sampled_steps=steps if is_sample else 0,
                has_prefill=prompt_tokens > 0,
                prefill_tokens=steps * prompt_tokens,
            )
        ]


class Steered:
    """A machine and the controller that steers it."""

    def __init__(self, machine: Machine, text: str = "kind: goodput") -> None:
        self.machine, self.policy = machine, policy(text)
        self.controller = Controller()
        self.held: Held = NOTHING_HELD
        self.emitted = 0

    def run(self, seconds: int, *, puts: bool = True) -> list[Plan]:
        plans = []
        for _ in range(seconds):
            seen = self.machine.poll()
            self.emitted += seen.emitted_tokens or 0
            self.controller.learn(seen)
            plans.append(self.controller.plan(seen, self.policy, self.held))
            if puts and plans[-1].rows is not None:
                self.machine.put(plans[-1])
                self.controller.accepted(plans[-1])
        return plans

    @property
    def tokens(self) -> int:
        return self.machine.at().num_speculative_tokens
