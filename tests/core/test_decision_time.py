"""What one decision costs the daemon."""

from __future__ import annotations

import math
import os
import statistics
import time

import pytest
from fakes.machine import Machine, Steered
from fakes.observations import chains, tree

pytestmark = pytest.mark.alone

BOUND_S = 1e-3
BUSY_FACTOR = 2.0
"""What other processes on the same cores may take, where more of them want to run than there are cores."""
PATIENCE_S = 15.0


def test_a_decision_takes_under_a_millisecond() -> None:
    """The full table: 8 buckets, 9 settings of three knobs, and probabilities; the best median of a round."""
    prepared = (*chains(0, 1, 2, 4, 8), tree(2, 2, 5), tree(4, 2, 8), tree(4, 4, 12), tree(8, 4, 16))
    machine = Machine(settings=prepared, buckets=(1, 2, 4, 8, 16, 32, 64, 128), min_token_prob=0.0)
    steered = Steered(machine)
    for batch in (1, 2, 4, 8, 16, 32, 64, 128):
        machine.batch = batch
        steered.run(4)
    seen = machine.poll()
    steered.controller.learn(seen)
    is_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    bound_s = BOUND_S * (BUSY_FACTOR if is_busy else 1.0)
    best_s, end_s = math.inf, time.monotonic() + PATIENCE_S
    while best_s >= bound_s and time.monotonic() < end_s:
        took = []
        for _ in range(11):
            started_s = time.thread_time()
            steered.controller.plan(seen, steered.policy)
            took.append(time.thread_time() - started_s)
        best_s = min(best_s, statistics.median(took))
    assert best_s < bound_s
