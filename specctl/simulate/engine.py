"""One simulated server: state, virtual time, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specctl.engine_profile import EngineProfile
from specctl.simulate import state as at
from specctl.simulate.scenario import BIN_S, Scenario
from specctl.simulate.state import Law, new_costs, new_log, new_requests, new_server
from specctl.simulate.stepping import advance, classes_of
from specctl.simulate.trace import Trace

__all__ = ["CLAIRVOYANT", "Series", "SimulatedEngine", "fitting"]

Ints = npt.NDArray[np.int64]
# In place of a table: the engine chooses for itself, knowing the law and the costs.
CLAIRVOYANT: Ints = np.zeros(0, np.int64)
STEPS_MAX = 1_000_000_000


def fitting(trace: Trace, profile: EngineProfile) -> Trace:
    """Without requests that this server could never run; they are counted in ``skipped``."""
    limits = profile.scheduler
    spare = 1 + profile.num_speculative_tokens_max + limits.kv_block_tokens
    return trace.that_fit(min(limits.max_model_len, limits.kv_tokens - spare))


@dataclass
class Series:
    """One point for every look: virtual time, mean decode batch, mean number of drafts, tokens so far."""

    time_s: list[float] = field(default_factory=list)
    decode_batch: list[float] = field(default_factory=list)
    num_speculative_tokens: list[float] = field(default_factory=list)
    emitted_tokens: list[float] = field(default_factory=list)


class SimulatedEngine:
    """Same trace, profile, scenario and seed: the same run, bit for bit, under the same settings.

    The trace must hold only requests that fit (see ``fitting``). ``log_steps`` over 0 keeps the steps until
    they are drained, and ``run`` may then end before its time.
    """

    def __init__(
        self, trace: Trace, profile: EngineProfile, scenario: Scenario, *, seed: int, log_steps: int = 0
    ) -> None:
        self.profile = profile
        kind = np.zeros(len(trace), np.int64)
        shares, row = scenario.shares_at(trace.arrival_s)
        classes_of(seed, shares, row, kind)
        self.class_names = tuple(one.name for one in scenario.classes)
        self.requests = new_requests(trace, kind)
        self.server = new_server(profile, len(trace), seed)
        positions = profile.num_speculative_tokens_max
        self._law = Law(np.ascontiguousarray(scenario.grid(positions)), BIN_S, scenario.repeat_s is not None)
        self._costs = new_costs(profile)
        self.log = new_log(log_steps, profile.scheduler.max_num_seqs)
        self.table: Ints = np.zeros(2, np.int64)
        self.is_table_by_scheduled = False
        self.switches = 0
        self.series = Series()
        self._seen = (0.0, 0.0, 0.0)

    @property
    def now_s(self) -> float:
        return float(self.server.sums[at.NOW])

    @property
    def is_done(self) -> bool:
        return int(self.server.counts[at.FINISHED]) == len(self.requests.prompt)

    @property
    def decode_batch(self) -> int:
        """Of the last step that decoded; 0 before the first."""
        return int(self.server.counts[at.LAST_BATCH])

    def set_table(self, table: Ints) -> None:
        """Numbers of drafts by decode batch, from the next step on. Counts a switch where the load feels
        it."""
        batch = self.decode_batch
        if batch and self.table.size and table.size:
            old, new = self.table[min(batch, self.table.size - 1)], table[min(batch, table.size - 1)]
            self.switches += int(old != new)
        self.table = np.ascontiguousarray(table, np.int64)

    def run(self, until_s: float, steps_max: int = STEPS_MAX) -> int:
        """Steps taken. Stops after the step that reaches ``until_s``, and when nothing is left to do."""
        return int(
            advance(
                self.requests,
                self.server,
                self._law,
                self._costs,
                self.table,
                self.is_table_by_scheduled,
                self.log,
                until_s,
                steps_max,
            )
        )

    def clear_log(self) -> None:
        self.server.counts[at.LOGGED] = self.server.counts[at.LOGGED_REQUESTS] = 0

    def note(self) -> None:
        """Append the means since the last look to the series."""
        sums = self.server.sums
        decode_s, batch, drafts = (float(sums[i]) for i in (at.DECODE, at.BATCH_BY_TIME, at.DRAFTS_BY_TIME))
        span_s = decode_s - self._seen[0]
        series = self.series
        series.time_s.append(self.now_s)
        series.emitted_tokens.append(float(sums[at.EMITTED_TOKENS]))
        series.decode_batch.append((batch - self._seen[1]) / span_s if span_s > 0 else 0.0)
        series.num_speculative_tokens.append((drafts - self._seen[2]) / span_s if span_s > 0 else 0.0)
        self._seen = (decode_s, batch, drafts)
