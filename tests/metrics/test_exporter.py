from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fakes.observations import applied, capabilities, cell, observation
from prometheus_client import generate_latest

from specctl.contract.adaptivity import AdaptivityState, EngineAdaptivity
from specctl.contract.table import TableRow, uniform_rows
from specctl.core.account import Account
from specctl.core.controller import Controller
from specctl.core.messages import Plan
from specctl.metrics import names
from specctl.metrics.exporter import Exporter
from specctl.policy.loader import parse_policy
from specctl.types import Observation
from specctl.watch.window import Interval, Window, of_poll

COST = "kind: cost\nprice_per_gpu_hour: 3.6"


def page(exporter: Exporter) -> str:
    return generate_latest(exporter.registry).decode()


def polls(rows: tuple[TableRow, ...], count: int = 12) -> Iterator[tuple[Observation, Plan]]:
    controller, policy = Controller(), parse_policy(COST, "p")
    steps = (
        cell(steps=90, tokens=4, accepted_at=(81, 72, 63, 54), step_s=0.011),
        cell(steps=9, tokens=0, accepted_at=(), step_s=0.01, sampled_steps=9),
    )
    adapts = EngineAdaptivity(name="adapts", decides="verified", is_bounded=True)
    known = capabilities(min_token_prob=0.0).model_copy(update={"adaptivity": adapts})
    for second in range(count):
        seen = observation(*steps, time_s=float(second), capabilities=known, applied=applied(rows))
        seen = replace(seen, failures={"propose": 2.0}, adaptivity=AdaptivityState(is_on=True))
        controller.learn(seen)
        yield seen, controller.plan(seen, policy)


@pytest.fixture
def exporter() -> Exporter:
    exporter, account, window = Exporter(), Account(), Window()
    exporter.known("http://h:8000", capabilities())
    rows = (uniform_rows(4)[0].model_copy(update={"min_token_prob": 0.2}),)
    for seen, plan in polls(rows):
        exporter.observed(seen)
        exporter.planned(plan)
        account.update(seen, plan)
        interval = of_poll(seen, plan.choices)
        assert interval is not None
        window.add(interval)
    exporter.figures("t", account)
    exporter.acceptance("t", window.total(), plan.lead)
    exporter.changed("t")
    exporter.lease("t", is_held=True)
    exporter.frozen("t", is_frozen=False)
    exporter.ticked("t", 0.1)
    exporter.targets(1)
    exporter.restart_advised("t", is_advised=True)
    exporter.soundness("t", "loop")
    exporter.failed("t", "target", is_down=True)
    return exporter


@pytest.mark.parametrize("metric", [*names.DAEMON, *names.ENGINE], ids=lambda metric: metric.name)
def test_names_and_helps_are_words_with_units(metric: names.Metric) -> None:
    assert re.fullmatch(r"specctl_[a-z_]+", metric.name)
    assert metric.help.endswith(".")
    assert 20 <= len(metric.help) <= 160
    assert set(metric.labels) <= {
        "by",
        "result",
        "engine",
        "instance",
        "method",
        "model_name",
        "num_speculative_tokens",
        "plugin_version",
        "state",
        "tree_topk",
        "version",
        "target",
        "reason",
        "kind",
        "setting",
        "position",
        "decode_batch_to",
        "entry",
        "cause",
        "adaptivity",
    }


def test_every_metric_is_served_once_and_with_a_value(exporter: Exporter) -> None:
    text = page(exporter)
    every = [metric.name for metric in [*names.DAEMON, *names.ENGINE]]
    assert len(set(every)) == len(every)
    for metric in names.DAEMON:
        assert text.count(f"# HELP {metric.name} ") == 1
        assert re.search(rf"^{metric.name}(_count)?(\{{.*\}})? [0-9]", text, re.MULTILINE), metric.name


def test_values_are_those_of_the_server(exporter: Exporter) -> None:
    text = page(exporter)
    assert 'specctl_target_up{target="t"} 0.0' in text
    assert 'specctl_num_speculative_tokens{decode_batch_to="1",target="t"} 4.0' in text
    assert 'specctl_verify_width_tokens{decode_batch_to="1",target="t"} 5.0' in text
    assert 'specctl_tree_topk{decode_batch_to="1",target="t"} 1.0' in text
    assert 'specctl_min_token_prob_ratio{decode_batch_to="1",target="t"} 0.2' in text
    assert 'specctl_plugin_failures{entry="propose",target="t"} 2.0' in text
    assert 'specctl_current_num_speculative_tokens{target="t"} 4.0' in text
    assert 'specctl_acceptance_rate_ratio{target="t"} 0.75' in text
    assert 'specctl_acceptance_length_tokens{target="t"} 4.0' in text
    assert 'specctl_verify_efficiency_ratio{target="t"} 0.8' in text
    emitted = 12 * (90 + 81 + 72 + 63 + 54 + 9)
    assert f'specctl_emitted_tokens_total{{target="t"}} {emitted}.0' in text
    assert sum(float(n) for n in re.findall(r"specctl_decisions_total\{.*\} (.*)", text)) == 12


def test_what_is_not_known_is_not_zero() -> None:
    exporter = Exporter()
    seen = observation(capabilities=capabilities(), applied=applied())
    controller = Controller()
    controller.learn(seen)
    exporter.planned(controller.plan(seen, parse_policy("kind: goodput", "p")))
    exporter.figures("t", Account())
    text = page(exporter)
    assert 'specctl_decisions_total{reason="idle",target="t"} 1.0' in text
    for name in ("specctl_speedup_vs_off", "specctl_sample_loss_ratio", "specctl_predicted_cost"):
        assert not re.search(rf"^{name}[a-z_]*\{{", text, re.MULTILINE)


def test_a_probability_that_is_no_longer_set_is_no_longer_served(exporter: Exporter) -> None:
    for _, plan in polls(uniform_rows(4)):
        exporter.planned(plan)
    text = page(exporter)
    assert 'specctl_num_speculative_tokens{decode_batch_to="1",target="t"} 4.0' in text
    assert "specctl_min_token_prob_ratio{" not in text


def test_a_target_that_left_is_no_longer_served(exporter: Exporter) -> None:
    exporter.forget("t")
    assert 'target="t"' not in page(exporter)
    exporter.failed("t", "target", is_down=True)
    assert 'specctl_target_up{target="t"} 0.0' in page(exporter), "it may come back"


def test_a_server_is_joined_with_the_metrics_of_its_engine(exporter: Exporter) -> None:
    def infos() -> list[str]:
        return re.findall(r"^specctl_target_info\{(.*)\} 1.0$", page(exporter), re.MULTILINE)

    known = capabilities()
    (labels,) = infos()
    for name, value in (
        ("target", "http://h:8000"),
        ("instance", "h:8000"),
        ("engine", known.engine),
        ("version", known.engine_version),
        ("model_name", known.model),
        ("method", known.method),
    ):
        assert f'{name}="{value}"' in labels
    exporter.known("http://h:8000", known.model_copy(update={"method": "ngram"}))
    (labels,) = infos()
    assert 'method="ngram"' in labels, "it restarted as another one"


def test_acceptance_that_is_no_longer_measured_is_no_longer_served(exporter: Exporter) -> None:
    exporter.acceptance("t", Interval(), None)
    text = page(exporter)
    for name in ("acceptance_rate_ratio", "acceptance_length_tokens", "current_num_speculative_tokens"):
        assert f"specctl_{name}{{" not in text


def test_the_process_and_the_version_are_served(exporter: Exporter) -> None:
    text = page(exporter)
    assert re.search(r"^process_resident_memory_bytes [1-9]", text, re.MULTILINE)
    assert re.search(r'^specctl_build_info\{version=".+"\} 1.0$', text, re.MULTILINE)
