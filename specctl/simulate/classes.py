"""Traffic classes of a simulated engine, counted as the plugin counts them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specctl.contract.classes import ClassKey, context_bucket, valid_kind
from specctl.engine.class_counters import ClassCounters
from specctl.simulate.engine import SimulatedEngine

__all__ = ["EngineClasses"]


class EngineClasses:
    """``has_kinds``: requests name their scenario's class as their kind, as clients may; else contexts only
    tell them apart."""

    def __init__(self, engine: SimulatedEngine, *, has_kinds: bool) -> None:
        self._engine = engine
        self._kinds = [valid_kind(name) if has_kinds else "" for name in engine.class_names]
        self.counters = ClassCounters(engine.profile.num_speculative_tokens_max)
        requests = len(engine.requests.prompt)
        self._numbers = np.full(requests, -1, np.int64)
        self._context_to = np.zeros(requests, np.int64)

    def count(self, drafts: int, members: npt.NDArray[np.int64], accepted: list[int], ended_s: float) -> None:
        """A step's decoding requests, where it is its turn to be counted."""
        if ended_s < self.counters.due_s:
            return
        requests = self._engine.requests
        context = requests.prompt[members] + requests.emitted[members]
        for r in members[context > self._context_to[members]]:
            upper = context_bucket(int(requests.prompt[r] + requests.emitted[r]))
            key = ClassKey("", self._kinds[requests.kind[r]], upper)
            self._numbers[r] = self.counters.number_of(key, ended_s)
            self._context_to[r] = upper
        numbers = self._numbers[members].tolist()
        self.counters.add(drafts, numbers, [drafts] * len(numbers), accepted, ended_s)
