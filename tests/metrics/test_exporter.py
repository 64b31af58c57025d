from __future__ import annotations

import re
import socket
import urllib.request

import pytest

from specctl.errors import SpecctlError
from specctl.metrics import names
from specctl.metrics.exporter import Exporter
from specctl.types import Decision, Observation, Reason, SurvivalEstimate

METRICS = [value for value in vars(names).values() if isinstance(value, names.Metric)]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_rule(metric: names.Metric) -> None:
    assert re.fullmatch(r"specctl_[a-z_]+(_total|_ratio|_seconds|_tokens|_targets|_per_second)", metric.name)
    assert metric.help.endswith(".")


def test_every_metric_is_served_once() -> None:
    exporter = Exporter()
    exporter.observed(Observation(target="t", time_s=1.0))
    survival = SurvivalEstimate((0.5,), (1.0,), (0.5,), (9.0,), 1)
    exporter.decided(Decision("t", 1.0, None, Reason.IDLE, "idle", survival=survival))
    exporter.changed("t")
    exporter.failed("t", "target", is_down=True)
    exporter.lease("t", is_held=True)
    exporter.ticked("t", 0.1)
    exporter.regret(
        "t",
        off_ratio=-0.5,
        best_static_ratio=None,
        best_static=0,
        exploration_lost_ratio=0.01,
        exploration_time_ratio=0.02,
        left_out_looks=2,
    )
    exporter.cost("u", None)
    exporter.cost("t", 1.5)
    exporter.restart_advised("t", is_advised=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    stop = exporter.serve("127.0.0.1", port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            page = answer.read().decode()
        with pytest.raises(SpecctlError, match="metrics port"):
            Exporter().serve("127.0.0.1", port)
    finally:
        stop()
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert page.count(f"# HELP {metric.name} ") == 1
    assert 'specctl_decisions_total{reason="idle",target="t"} 1.0' in page
    assert 'specctl_target_up_ratio{target="t"} 0.0' in page
    assert 'specctl_regret_off_ratio{target="t"} -0.5' in page
    assert 'specctl_regret_best_static_ratio{target="t"} NaN' in page
    assert 'specctl_regret_left_out_looks_total{target="t"} 2.0' in page
    assert 'specctl_predicted_cost_per_million_tokens{target="t"} 1.5' in page
    assert 'specctl_predicted_cost_per_million_tokens{target="u"}' not in page
