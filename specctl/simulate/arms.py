"""What steers a simulated engine: fixed settings, stock rules, the clairvoyant. The daemon: daemon.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from specctl.contract.setting import Setting
from specctl.simulate import state as at
from specctl.simulate.engine import CLAIRVOYANT, SimulatedEngine, table_of
from specctl.simulate.settings import chains, setting_name

__all__ = [
    "STOCK_TABLE",
    "Arm",
    "Clairvoyant",
    "SglangAdaptive",
    "Static",
    "StockTable",
    "arms_without_daemon",
    "statics",
]

# What a user of vLLM's num_speculative_tokens_per_batch_size may write: (from, to, number of drafts), by
# batch.
STOCK_TABLE = ((1, 16, 7), (17, 100, 3), (101, 1_000_000, 0))
LOOK_S = 1.0


class Arm(Protocol):
    """``log_steps``: how many steps the engine's log must hold; ``poll_interval_s``: virtual seconds between
    two polls."""

    name: str
    log_steps: int
    poll_interval_s: float

    def start(self, engine: SimulatedEngine) -> None:
        """Set up the engine before its first step."""

    def run(self, until_s: float) -> None:
        """Let the engine run until then, and poll it."""


class _Plain:
    """Sets the table once."""

    log_steps = 0
    poll_interval_s = LOOK_S

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, until_s: float) -> None:
        self._engine.run(until_s)

    def start(self, engine: SimulatedEngine) -> None:
        self._engine = engine


class Static(_Plain):
    """One setting, whatever happens. A number stands for the chain of that depth; 0 is off."""

    def __init__(self, setting: Setting | int) -> None:
        self._setting = Setting(num_speculative_tokens=setting) if isinstance(setting, int) else setting
        super().__init__(setting_name(self._setting))

    def start(self, engine: SimulatedEngine) -> None:
        super().start(engine)
        engine.set_table(table_of(np.full(2, engine.place_of(self._setting), np.int64)))


class StockTable(_Plain):
    """vLLM's num_speculative_tokens_per_batch_size: ranges of scheduled requests, set at start.

    The number for a step goes by the requests that the step before scheduled, prompts included
    (vllm/v1/core/sched/scheduler.py, dynamic_sd_lookup).
    """

    def __init__(self, ranges: Sequence[tuple[int, int, int]] = STOCK_TABLE) -> None:
        super().__init__("stock table")
        self._ranges = tuple(ranges)

    def start(self, engine: SimulatedEngine) -> None:
        super().start(engine)
        size = engine.profile.scheduler.max_num_seqs + 1
        settings = np.zeros(size, np.int64)
        for low, high, value in self._ranges:
            settings[low : min(high, size - 1) + 1] = _longest_chain(engine, value)
        engine.is_table_by_scheduled = True
        engine.set_table(table_of(settings))


class Clairvoyant(_Plain):
    """Knows the acceptance law of this moment, every request's class and length, and the costs; chooses one
    of the prepared settings at every step.

    It takes the setting with the most expected emitted tokens per second of the step. In a step that holds
    prompts their seconds are spent in any case, so there it weighs a draft's tokens against what its seconds
    would have emitted in a step without prompts (``costs.weigh``).

    Its limits: it is greedy. It does not see that a request which ends sooner leaves a smaller batch, nor
    how the queue will grow; it knows chances, not the luck of a draft; and its setting is one for the whole
    batch, as the engine's is. So a run of another arm may end a little earlier, by luck or by another order
    of work.
    """

    def __init__(self) -> None:
        super().__init__("clairvoyant")

    def start(self, engine: SimulatedEngine) -> None:
        super().start(engine)
        engine.set_table(CLAIRVOYANT)


class _Slot:
    """Steps of one range of batch sizes, moved by an average of accepted drafts."""

    ALPHA = 0.2
    WARM_UP, EVERY = 10, 5

    def __init__(self, candidates: Sequence[int], initial: int, down: float) -> None:
        self._candidates = sorted(candidates)
        known = initial in self._candidates
        self.steps = initial if known else self._candidates[len(self._candidates) // 2]
        self._average = self.steps - 1.0
        self._down = down
        self._batches = 0

    def update(self, mean_accepted: float) -> bool:
        """Whether the number of steps changed."""
        if self.steps > 0:
            self._average += self.ALPHA * (mean_accepted - self._average)
        self._batches += 1
        since = self._batches - self.WARM_UP
        if since <= 0 or since % self.EVERY:
            return False
        before = self.steps
        self.steps = self._candidates[self._moved(self._candidates.index(before))]
        return self.steps != before

    def _moved(self, index: int) -> int:
        values = self._candidates
        if values[index] == 0:
            index = min(index + 1, len(values) - 1)
            if values[index] > 0 and self._average < 0:
                self._average = values[index] - 1.0
            return index
        started = index
        while index > 0 and self._average <= self._floor(values[index - 1]):
            index -= 1
        if index == started:
            while index < len(values) - 1 and self._average > values[index] - 0.5:
                index += 1
        return index

    def _floor(self, below: int) -> float:
        """The average at or under which the candidate below is taken."""
        return (0.5 if below == 0 else below - 0.5) + self._down


class SglangAdaptive:
    """SGLang's adaptive steps with its default table (python/sglang/srt/speculative/adaptive_spec_params.py).

    By range of batch sizes (from 1, 8, 32, 64 requests) a set of candidate steps; an average of accepted
    drafts with weight 0.2, read every 5 verified batches after 10: it drops while at most half a token
    above the candidate below, and rises while more than its own steps less a half. Steps of 0 are left again
    at the next update. It knows no costs. A switch is free here; in SGLang each candidate has its own
    graphs.
    """

    SLOTS = ((1, (1, 3, 5, 7), -0.25), (8, (0, 1, 3), 0.0), (32, (0, 1), 0.0), (64, (0,), 0.0))
    INITIAL = 3
    name = "sglang adaptive"
    log_steps = 1
    poll_interval_s = LOOK_S

    def start(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        most = engine.profile.num_speculative_tokens_max
        self._slots = [
            _Slot([step for step in steps if step <= most], self.INITIAL, down)
            for _, steps, down in self.SLOTS
        ]
        graphs = engine.profile.graph_requests
        starts = np.array([start for start, _, _ in self.SLOTS])
        sizes = range(engine.profile.scheduler.max_num_seqs + 1)
        padded = [next((graph for graph in graphs if graph >= size), size) for size in sizes]
        self._slot_of = np.maximum(np.searchsorted(starts, padded, side="right") - 1, 0)
        self._take()

    def run(self, until_s: float) -> None:
        engine, counts = self._engine, self._engine.server.counts
        while engine.now_s < until_s and engine.run(until_s, 1):
            batch = int(counts[at.LOGGED_REQUESTS])
            if batch:
                mean = float(engine.log.accepted[:batch].sum()) / batch
                if self._slots[self._slot_of[batch]].update(mean):
                    self._take()
            engine.clear_log()

    def _take(self) -> None:
        settings = np.array([_longest_chain(self._engine, slot.steps) for slot in self._slots], np.int64)
        self._engine.set_table(table_of(settings[self._slot_of]))


def _longest_chain(engine: SimulatedEngine, depth: int) -> int:
    """Place of the prepared chain of that depth, or of the next shorter one."""
    fitting = [s for s in engine.settings if s.tree_topk == 1 and s.num_speculative_tokens <= depth]
    return engine.place_of(max(fitting, key=lambda setting: setting.num_speculative_tokens))


def statics(settings: Sequence[Setting]) -> list[Arm]:
    """Each of the settings for ever, and the clairvoyant."""
    return [*(Static(setting) for setting in settings), Clairvoyant()]


def arms_without_daemon(
    num_speculative_tokens_max: int, ranges: Sequence[tuple[int, int, int]] = STOCK_TABLE
) -> list[Arm]:
    """Off, every static number, the stock table, SGLang's rule, and the clairvoyant."""
    *static, clairvoyant = statics(chains(num_speculative_tokens_max))
    return [*static, StockTable(ranges), SglangAdaptive(), clairvoyant]
