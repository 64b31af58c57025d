"""The plugin's side of a simulated engine: capabilities, live table with its lease, counters, telemetry.

What a real engine's plugin does is done by the same code: step counters and the live table.
"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from specctl.contract import CONTRACT_VERSION
from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import Setting
from specctl.contract.table import AppliedTable, TablePut, TableRow
from specctl.contract.telemetry import Telemetry
from specctl.engine.buckets import DecodeBatchBuckets
from specctl.engine.live_table import LiveTable
from specctl.engine.request_classes import OTHER
from specctl.engine.step_counters import StepCounters, StepRecord
from specctl.engine.traffic_classes import RequestClasses
from specctl.engine_api.deltas import TelemetryGains
from specctl.errors import TargetError
from specctl.simulate import state as at
from specctl.simulate.engine import SimulatedEngine, table_of
from specctl.types import Observation

__all__ = ["LOG_STEPS", "TARGET", "SimulatedTarget", "capabilities_of"]

TARGET = "simulated"
LEASE_MAX_S = 3600.0
ROWS_MAX = 64
LOG_STEPS = 512
SAMPLE_EVERY_MIN_STEPS = 2
# Ticks come when a step has ended, so that they are apart by an interval and up to a step.
STEP_MAX_S = 0.25


def capabilities_of(engine: SimulatedEngine) -> Capabilities:
    """As the plugin would say it of such a server. On a GPU it has no shadow acceptance, so neither here."""
    profile, limits, settings = engine.profile, engine.profile.scheduler, engine.settings
    fingerprint = profile.fingerprint
    name, _, version = fingerprint.engine.partition(" ")
    topks = sorted({setting.tree_topk for setting in settings})
    return Capabilities(
        contract_version=CONTRACT_VERSION,
        engine=name,
        engine_version=version,
        plugin_version="simulated",
        boot_id="simulated",
        model=fingerprint.model,
        gpu=fingerprint.gpu,
        dtype=fingerprint.dtype,
        parallelism=fingerprint.parallelism,
        method=profile.method,
        controllable=True,
        num_speculative_tokens_legal=tuple(sorted({one.num_speculative_tokens for one in settings})),
        tree_topk_max=topks[-1],
        tree_topk_legal=tuple(topks),
        settings=settings,
        why_chains_only=None if topks[-1] > 1 else "only chains are prepared",
        sample_every_min_steps=SAMPLE_EVERY_MIN_STEPS,
        decode_batch_max=limits.max_num_seqs,
        context_max_tokens=limits.max_model_len,
        decode_batch_buckets=DecodeBatchBuckets(limits.max_num_seqs).uppers,
        rows_max=ROWS_MAX,
        lease_max_s=LEASE_MAX_S,
        has_shadow_acceptance=False,
    )


class SimulatedTarget:
    """One engine as a daemon meets it: ``observe`` and ``put``. ``run`` lets the engine take steps.

    It starts with the deepest setting that is prepared, as a server without a table of its own does. A step
    that is under way is counted when it has ended.
    """

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self.capabilities = capabilities_of(engine)
        most = max(engine.settings, key=lambda one: (one.num_speculative_tokens, one.width_tokens))
        start = TableRow(decode_batch_from=1, **most.model_dump())
        self.live = LiveTable(self.capabilities, (start,), lambda: engine.now_s)
        buckets = DecodeBatchBuckets(self.capabilities.decode_batch_max)
        self.counters = StepCounters(buckets, most.num_speculative_tokens)
        self._classes = RequestClasses(most.num_speculative_tokens, lambda _: OTHER, lambda _: 0)
        self._requests: dict[int, SimpleNamespace] = {}
        """Of the last step that was counted by class and group."""
        self._history: deque[tuple[float, Telemetry]] = deque()
        self._gains = TelemetryGains()
        self._in_force: object = None
        self._take_table()

    def run(self, until_s: float) -> None:
        """Steps under the live table, whose lease may end meanwhile."""
        engine = self._engine
        while engine.now_s < until_s and not engine.is_done:
            self._take_table()
            engine.run(min(until_s, self._lease_end_s()))
            self._drain()
        self._history.append((engine.now_s, self._telemetry()))

    def put(self, change: TablePut) -> AppliedTable:
        """``PUT /specctl/v1/table`` without HTTP; raises what the live table raises."""
        return self.live.put(change)

    def observe(self) -> Observation:
        """What ``specctl.engine_api.observer`` builds, from the same counters. Raises TargetError while the
        perturbation says that none can be read."""
        now_s, perturbation = self._engine.now_s, self._engine.perturbation
        if perturbation.is_telemetry_gone(now_s):
            raise TargetError(f"{TARGET}: no answer")
        telemetry = self._readable(now_s - perturbation.telemetry_late_s)
        gains = self._gains.since_last(now_s, telemetry)
        return Observation(
            target=TARGET,
            time_s=now_s,
            capabilities=self.capabilities,
            applied=self.live.read(),
            **gains._asdict(),
            running=telemetry.running,
            waiting=telemetry.waiting,
            decoding=telemetry.decoding,
            kv_cache_used_ratio=telemetry.kv_cache_used_ratio,
            front_end_waiting_pieces=telemetry.front_end_waiting_pieces,
        )

    def _readable(self, until_s: float) -> Telemetry:
        """The newest telemetry that is not newer than that, or by a step; before there is one, the first."""
        if not self._history:
            self._history.append((self._engine.now_s, self._telemetry()))
        while len(self._history) > 1 and self._history[1][0] <= until_s + STEP_MAX_S:
            self._history.popleft()
        return self._history[0][1]

    def _telemetry(self) -> Telemetry:
        engine, counts = self._engine, self._engine.server.counts
        return Telemetry(
            contract_version=CONTRACT_VERSION,
            boot_id=self.capabilities.boot_id,
            uptime_s=engine.now_s,
            table_version=self.live.version,
            table_state=self.live.state,
            num_speculative_tokens=engine.settings[max(counts[at.LAST_SETTING], 0)].num_speculative_tokens,
            running=int(counts[at.RUNNING]),
            waiting=int(counts[at.TAIL] - counts[at.HEAD]),
            decoding=engine.decode_batch,
            kv_cache_used_ratio=float(counts[at.KV_USED]) / engine.profile.scheduler.kv_tokens,
            cells=self.counters.cells(),
            acceptance_groups=self._classes.groups.snapshot(),
            front_end_waiting_pieces=self._front_end_waiting_pieces(),
        )

    def _front_end_waiting_pieces(self) -> int | None:
        piece_s = self._engine.perturbation.front_end_s
        waits_s = float(self._engine.server.sums[at.FRONT_END]) - self._engine.now_s
        return int(max(waits_s, 0.0) / piece_s) if piece_s else None

    def _lease_end_s(self) -> float:
        remaining_s = self.live.read().lease_remaining_s
        # A lease that ends now has ended: never ask the engine to run for no time.
        return float("inf") if remaining_s is None else self._engine.now_s + max(remaining_s, 1e-6)

    def _take_table(self) -> None:
        """What the engine's scheduler looks up at every step: the live table by decode batch."""
        key = (self.live.version, self.live.state)
        if key == self._in_force:
            return
        self._in_force = key
        sizes = range(self.capabilities.decode_batch_max + 1)
        rows = [self.live.lookup_row(max(size, 1)) for size in sizes]
        named = {id(row): self._places(row) for row in rows}
        settings, samples, every_steps = np.array([named[id(row)] for row in rows], np.int64).T
        self._engine.set_table(table_of(settings, samples, every_steps))

    def _places(self, row: TableRow) -> tuple[int, int, int]:
        """Of the row's setting and of its sample's, and how often it is sampled; 0: never."""
        place = self._engine.place_of(row)
        if row.sample is None:
            return place, place, 0
        return place, self._engine.place_of(row.sample.setting), row.sample.every_steps

    def _drain(self) -> None:
        """The engine's steps into the counters that the plugin keeps."""
        engine, log, counts = self._engine, self._engine.log, self._engine.server.counts
        integers = log.integers[: counts[at.LOGGED]].tolist()
        floats = log.floats[: counts[at.LOGGED]].tolist()
        accepted = log.accepted[: counts[at.LOGGED_REQUESTS]].tolist()
        found = log.found[: counts[at.LOGGED_REQUESTS]].tolist()
        ids = log.requests[: counts[at.LOGGED_REQUESTS]].tolist()
        first = 0
        for numbers, (step_s, draft_s, ended_s) in zip(integers, floats, strict=True):
            place, batch, emitted, context, prefill, is_sampled = numbers
            if not batch:
                self.counters.add_prompts(prefill, step_s)
                continue
            setting = engine.settings[place]
            depth = setting.num_speculative_tokens
            of_step = accepted[first : first + batch]
            has_drafts = found[first : first + batch]
            drafted = [depth if has else 0 for has in has_drafts]
            self.counters.add(
                StepRecord(
                    num_speculative_tokens=depth,
                    drafted=drafted,
                    accepted=of_step,
                    emitted_tokens=emitted,
                    context_tokens=context,
                    prefill_tokens=prefill,
                    step_s=step_s,
                    draft_s=draft_s,
                    verify_s=step_s - draft_s,
                    tree_topk=setting.tree_topk,
                    verify_width_tokens=setting.verify_width_tokens,
                    is_sampled=bool(is_sampled),
                    verified_tokens=batch + sum(has_drafts) * (setting.width_tokens - 1),
                    accepted_ranks=_ranks(log.ranks[first : first + batch], of_step, setting),
                )
            )
            if ended_s >= self._classes.counters.due_s or is_sampled:
                self._count_by_group(depth, ids[first : first + batch], drafted, of_step, ended_s)
            first += batch
        engine.clear_log()

    def _count_by_group(
        self, depth: int, ids: list[int], drafted: list[int], accepted: list[int], ended_s: float
    ) -> None:
        known, requests = self._requests, []
        for number in ids:
            request = known.get(number)
            if request is None:
                request = SimpleNamespace()
                self._classes.arrived(request, ended_s)
            requests.append(request)
        self._requests = dict(zip(ids, requests, strict=True))
        self._classes.count(depth, requests, drafted, accepted, ended_s)


def _ranks(
    ranks: npt.NDArray[np.integer[Any]], accepted: list[int], setting: Setting
) -> npt.NDArray[np.int64] | None:
    """int64[depth, topk]: accepted tokens of a tree by depth and rank; None: a chain."""
    if setting.tree_topk == 1:
        return None
    counts = np.zeros((setting.num_speculative_tokens, setting.tree_topk), np.int64)
    for path, length in zip(ranks.tolist(), accepted, strict=True):
        for depth, rank in enumerate(path[:length]):
            counts[depth, min(rank, setting.tree_topk - 1)] += 1
    return counts
