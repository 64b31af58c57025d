"""One simulated server: state, virtual time, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specctl.contract.setting import Setting
from specctl.errors import SimulationInputError
from specctl.simulate import state as at
from specctl.simulate.closed_loop import ClosedLoad
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.luck import classes_of
from specctl.simulate.perturbation import Perturbation
from specctl.simulate.scenario import BIN_S, Scenario
from specctl.simulate.settings import chains, index_of, prepared_of
from specctl.simulate.state import Arrivals, World
from specctl.simulate.stepping import advance
from specctl.simulate.trace import Trace

__all__ = ["CLAIRVOYANT", "PLAIN", "Load", "Series", "SimulatedEngine", "fitting", "table_of"]

Ints = npt.NDArray[np.int64]
Load = Trace | ClosedLoad
# In place of a table: the engine chooses for itself, knowing the law and the costs.
CLAIRVOYANT: Ints = np.zeros((0, 3), np.int64)
STEPS_MAX = 1_000_000_000
PLAIN = Perturbation()


def fitting(trace: Trace, profile: EngineProfile) -> Trace:
    """Without requests that this server could never run; they are counted in ``skipped``."""
    return trace.that_fit(_most_tokens(profile))


def _most_tokens(profile: EngineProfile) -> int:
    limits = profile.scheduler
    spare = 1 + profile.num_speculative_tokens_max + limits.kv_block_tokens
    return min(limits.max_model_len, limits.kv_tokens - spare)


def table_of(settings: Ints, samples: Ints | None = None, every_steps: Ints | None = None) -> Ints:
    """What the steps go by: places of prepared settings by decode batch, and of the samples where
    ``every_steps`` is over 0."""
    table = np.zeros((len(settings), 3), np.int64)
    table[:, at.SETTING] = settings
    table[:, at.SAMPLE] = settings if samples is None else samples
    table[:, at.EVERY_STEPS] = 0 if every_steps is None else every_steps
    return table


@dataclass
class Series:
    """One point for every poll: virtual time, mean decode batch, mean depth of drafts, tokens so far."""

    time_s: list[float] = field(default_factory=list)
    decode_batch: list[float] = field(default_factory=list)
    num_speculative_tokens: list[float] = field(default_factory=list)
    emitted_tokens: list[float] = field(default_factory=list)


class SimulatedEngine:
    """Same load, profile, scenario and seed: the same run, bit for bit, under the same settings.

    A trace must hold only requests that fit (see ``fitting``). ``settings``: what is prepared, off first;
    default: every chain that the profile has. ``log_steps`` over 0 keeps the steps until they are drained,
    and ``run`` may then end before its time.
    """

    def __init__(
        self,
        load: Load,
        profile: EngineProfile,
        scenario: Scenario,
        *,
        seed: int,
        log_steps: int = 0,
        settings: Sequence[Setting] = (),
        perturbation: Perturbation = PLAIN,
    ) -> None:
        self.profile, self.seed, self.perturbation = profile, seed, perturbation
        self.settings = tuple(settings) or chains(profile.num_speculative_tokens_max)
        self.class_names = tuple(one.name for one in scenario.classes)
        self._closed = load if isinstance(load, ClosedLoad) else None
        self._blocks = 0
        if self._closed is not None and self._closed.tokens_max > _most_tokens(profile):
            raise SimulationInputError(
                f"a request of the load may have {self._closed.tokens_max} tokens, the server takes at most "
                f"{_most_tokens(profile)}"
            )
        prepared = prepared_of(self.settings)
        requests = _requests(load, scenario, seed)
        self._world = World(
            requests,
            at.new_server(profile, len(requests.prompt), seed),
            at.new_law(scenario, prepared, perturbation),
            at.new_costs(profile, len(self.settings), perturbation, seed),
            prepared,
            _arrivals(self._closed, scenario),
            at.new_flips(self._closed.pays_s if self._closed else ()),
        )
        self.log = at.new_log(log_steps, profile.scheduler.max_num_seqs, prepared)
        self.table = table_of(np.zeros(2, np.int64))
        self.is_table_by_scheduled = False
        self.switches = 0
        self.series = Series()
        self._seen = (0.0, 0.0, 0.0)

    @property
    def requests(self) -> at.Requests:
        return self._world.requests

    @property
    def server(self) -> at.Server:
        return self._world.server

    @property
    def flips(self) -> at.Flips:
        return self._world.flips

    @property
    def now_s(self) -> float:
        return float(self.server.sums[at.NOW])

    @property
    def is_done(self) -> bool:
        if self._closed is not None:
            return self.now_s >= self._closed.span_s
        return int(self.server.counts[at.FINISHED]) == len(self.requests.prompt)

    @property
    def decode_batch(self) -> int:
        """Of the last step that decoded; 0 before the first."""
        return int(self.server.counts[at.LAST_BATCH])

    def place_of(self, setting: Setting) -> int:
        """Of a prepared setting, as a table names it. Raises ValueError."""
        return index_of(setting, self.settings)

    def set_table(self, table: Ints) -> None:
        """A table (see ``table_of``), from the next step on. Counts a switch where the load feels it: the row
        of the present batch has another setting, whatever it samples."""
        batch = self.decode_batch
        if batch and len(self.table) and len(table):
            old, new = (one[min(batch, len(one) - 1), at.SETTING] for one in (self.table, table))
            self.switches += int(old != new)
        self.table = np.ascontiguousarray(table, np.int64)

    def run(self, until_s: float, steps_max: int = STEPS_MAX) -> int:
        """Steps taken. Stops after the step that reaches ``until_s``, and when nothing is left to do."""
        if self._closed is not None:
            until_s = min(until_s, self._closed.span_s)
        steps = 0
        while True:
            steps += int(
                advance(
                    self._world, self.table, self.is_table_by_scheduled, self.log, until_s, steps_max - steps
                )
            )
            is_out_of_requests = int(self.server.counts[at.NEXT]) == len(self.requests.prompt)
            if self._closed is None or not is_out_of_requests or self.now_s >= until_s or steps >= steps_max:
                return steps
            if self._is_log_full():
                return steps
            self._add_requests(self._closed)

    def clear_log(self) -> None:
        self.server.counts[at.LOGGED] = self.server.counts[at.LOGGED_REQUESTS] = 0

    def note(self) -> None:
        """Append the means since the last poll to the series."""
        sums = self.server.sums
        decode_s, batch, drafts = (float(sums[i]) for i in (at.DECODE, at.BATCH_BY_TIME, at.DEPTH_BY_TIME))
        span_s = decode_s - self._seen[0]
        series = self.series
        series.time_s.append(self.now_s)
        series.emitted_tokens.append(float(sums[at.EMITTED_TOKENS]))
        series.decode_batch.append((batch - self._seen[1]) / span_s if span_s > 0 else 0.0)
        series.num_speculative_tokens.append((drafts - self._seen[2]) / span_s if span_s > 0 else 0.0)
        self._seen = (decode_s, batch, drafts)

    def _is_log_full(self) -> bool:
        return 0 < len(self.log.floats) == int(self.server.counts[at.LOGGED])

    def _add_requests(self, load: ClosedLoad) -> None:
        """A closed loop's next requests; those that an earlier arm met, in the same order."""
        prompt, output = load.lengths(self._blocks, self.seed)
        self._blocks += 1
        nothing = np.zeros(len(prompt), np.int64)
        more = at.new_requests(np.zeros(len(prompt)), prompt, output, nothing)
        requests = at.Requests(*(np.concatenate(pair) for pair in zip(self.requests, more, strict=True)))
        waiting, finished = (
            np.concatenate([one, nothing]) for one in (self.server.waiting, self.server.finished)
        )
        server = self.server._replace(waiting=waiting, finished=finished)
        self._world = self._world._replace(requests=requests, server=server)


def _requests(load: Load, scenario: Scenario, seed: int) -> at.Requests:
    """Of a trace; a closed loop's are added when they are needed."""
    if isinstance(load, ClosedLoad):
        nothing = np.zeros(0, np.int64)
        return at.new_requests(np.zeros(0), nothing, nothing, nothing)
    kind = np.zeros(len(load), np.int64)
    shares, row = scenario.shares_at(load.arrival_s)
    classes_of(seed, shares, row, kind)
    return at.new_requests(load.arrival_s, load.prompt_tokens, load.output_tokens, kind)


def _arrivals(closed: ClosedLoad | None, scenario: Scenario) -> Arrivals:
    if closed is None:
        in_flight, latest_s = np.zeros(0, np.int64), 0.0
    else:
        in_flight, latest_s = closed.in_flight, closed.span_s
    times = np.arange(int(latest_s / BIN_S) + 2, dtype=np.float64) * BIN_S
    shares, row = scenario.shares_at(times)
    return Arrivals(np.ascontiguousarray(in_flight, np.int64), BIN_S, shares, row)
