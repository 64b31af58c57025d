"""What one decision costs the daemon."""

from __future__ import annotations

import time

import numpy as np
from fakes.machine import Machine, Steered
from fakes.observations import chains, tree


def test_a_decision_takes_under_a_millisecond() -> None:
    """The full table: 8 buckets, 9 settings of three knobs, and probabilities. The best of many rounds."""
    prepared = (*chains(0, 1, 2, 4, 8), tree(2, 2, 5), tree(4, 2, 8), tree(4, 4, 12), tree(8, 4, 16))
    machine = Machine(settings=prepared, buckets=(1, 2, 4, 8, 16, 32, 64, 128), min_token_prob=0.0)
    steered = Steered(machine)
    for batch in (1, 2, 4, 8, 16, 32, 64, 128):
        machine.batch = batch
        steered.run(4)
    seen = machine.poll()
    steered.controller.learn(seen)
    medians = []
    for _ in range(40):
        took = []
        for _ in range(11):
            started_s = time.thread_time()
            steered.controller.plan(seen, steered.policy)
            took.append(time.thread_time() - started_s)
        medians.append(float(np.median(took)))
    assert min(medians) < 1e-3
