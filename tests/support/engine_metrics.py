"""The plugin's counts on a real engine's own /metrics agree with its telemetry."""

from __future__ import annotations

import re
import time
from typing import Any

from specctl.engine.own_metrics import FRESH_S

__all__ = ["assert_metrics_hold_the_plugins"]


def assert_metrics_hold_the_plugins(control: Any, tokens: int, engines_own: str) -> None:
    """``tokens``: of a chain that has run; ``engines_own``: a metric of the engine with its label
    ``model_name``. The server must be idle."""
    time.sleep(FRESH_S + 0.1)
    page = control.client.get("/metrics").raise_for_status().text
    match = re.search(rf'^{engines_own}\{{.*model_name="([^"]+)"', page, re.MULTILINE)
    assert match is not None
    model = f'model_name="{match[1]}"'
    found = dict(re.findall(r"^(specctl_engine_[a-z_]+(?:\{.*\})?) (\S+)$", page, re.MULTILINE))
    assert float(found["specctl_engine_answered"]) == 1
    assert float(found[f"specctl_engine_table_version{{{model}}}"]) == control.get("table")["version"]
    cells = [
        cell
        for cell in control.get("telemetry")["cells"]
        if cell["request_steps"] and (cell["num_speculative_tokens"], cell["tree_topk"]) == (tokens, 1)
    ]
    setting = f'{{{model},num_speculative_tokens="{tokens}",tree_topk="1"}}'
    for name, key in (("steps", "steps"), ("emitted_tokens", "emitted_tokens"), ("step_seconds", "step_s")):
        served, counted = float(found[f"specctl_engine_{name}_total{setting}"]), sum(c[key] for c in cells)
        assert abs(served - counted) < 1e-6 * max(counted, 1.0)
        assert served > 0
    # The engine's own counters of requests are there, too.
    engine = engines_own.partition(":")[0]
    counted = re.search(rf"^{engine}:time_to_first_token_seconds_count\{{.*\}} (\S+)$", page, re.MULTILINE)
    assert counted is not None
    assert float(counted[1]) > 0
