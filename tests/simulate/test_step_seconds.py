"""The one cost function, as the daemon calls it and as the simulator compiles it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specctl.policy.loader import shipped_policies
from specctl.simulate import costs as compiled
from specctl.simulate.engine_profile import load_profile
from specctl.simulate.step_seconds import StepCosts, step_seconds

COSTS = StepCosts(
    tokens=(1.0, 10.0, 110.0),
    seconds=(0.010, 0.010, 0.020),
    graph_requests=(4, 8),
    graph_tokens_max=32,
    ungraphed_min_s=0.013,
    request_s=0.0001,
    context_token_s=1e-6,
    prefill_token_s=1e-5,
    prefill_step_s=0.002,
    prefill_pair_s=1e-7,
    draft_base_s=0.001,
    draft_request_s=0.0002,
    draft_pass_s=0.0005,
    draft_pass_request_s=5e-5,
    draft_pass_context_token_s=2e-7,
    draft_at_zero_s=0.0003,
)


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        # Three requests run as four: 4 positions of the forward pass.
        ((3, 0, 1, 3, 0, 0, 0), 0.010 + 0.0003 + 0.0003),
        # 4 x 8 = 32 positions fit the graph.
        ((4, 7, 8, 32, 0, 0, 0), 0.0122 + 0.0004 + 0.001 + 0.0008 + 0.0035 + 0.0014),
        # 5 requests run as 8: 64 positions do not fit, so that the step runs without a graph.
        ((5, 7, 8, 40, 0, 0, 0), 0.0135 + 0.001 + 0.001 + 0.0035 + 0.00175),
        # No graph, and few positions: the least that such a step takes, then the drafts.
        ((9, 3, 4, 12, 0, 0, 0), 0.013 + 0.001 + 0.0018 + 0.0015 + 0.00135),
        # Shorter drafts verify less of the padded width.
        ((4, 7, 8, 20, 0, 0, 0), 0.011 + 0.0004 + 0.001 + 0.0008 + 0.0035 + 0.0014),
        # Each pass of the draft model reads the context.
        ((4, 7, 8, 20, 1000, 0, 0), 0.011 + 0.0004 + 0.001 + 0.001 + 0.0008 + 0.0035 + 0.0014 + 0.0014),
        # Beyond the last point the line goes on; prompts run without a graph.
        ((4, 0, 1, 4, 1000, 206, 50), 0.030 + 0.0004 + 0.001 + 0.00206 + 5e-6 + 0.002 + 0.0003),
        # Prompts alone draft nothing.
        ((0, 7, 8, 0, 0, 60, 0), 0.015 + 0.0006 + 0.002 + 0.0003),
    ],
    ids=[
        "padded",
        "widest graph",
        "no graph",
        "least",
        "short drafts",
        "context",
        "prompts",
        "prompts alone",
    ],
)
def test_seconds_by_hand(arguments: tuple[float, ...], seconds: float) -> None:
    assert step_seconds(COSTS, *arguments) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("path", shipped_policies("profiles"), ids=lambda path: path.stem)
def test_compiled_and_plain_are_the_same(path: Path) -> None:
    plain = load_profile(path).step_costs()
    arrays = plain._replace(
        tokens=np.array(plain.tokens),
        seconds=np.array(plain.seconds),
        graph_requests=np.array(plain.graph_requests, np.int64),
    )
    rng = np.random.default_rng(0)
    for _ in range(200):
        batch, depth = float(rng.integers(0, 300)), int(rng.integers(0, 9))
        prefill = float(rng.integers(0, 4000) * rng.integers(0, 2))
        arguments = (batch, depth, depth + 1, batch * (depth + 1), batch * 300.0, prefill, prefill * 50.0)
        assert compiled.step_seconds(arrays, *arguments) == step_seconds(plain, *arguments)
