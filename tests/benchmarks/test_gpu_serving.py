"""Benchmarks of servers on a GPU: what they call ``specctl bench`` with, and what they make of its result."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fakes.streaming import StreamingServer

from benchmarks.gpu import compare, phases, rates, serving, sglang_compare
from specctl.bench.arms import parse_arm
from specctl.bench.loads import product
from specctl.bench.servers import parse_launch

OPTIONS = argparse.Namespace(
    model=Path("model"),
    draft="head",
    peagle="other-head",
    arms=[],
    arm=None,
    batch=None,
    prompts=None,
    max_tokens=8,
)


@pytest.mark.parametrize(
    "part",
    [
        *(compare.off_cost, compare.copying, compare.peagle),
        *(sglang_compare.off, sglang_compare.copying, sglang_compare.peagle, sglang_compare.sampled),
    ],
)
def test_servers_and_loads_of_a_part_are_what_the_command_takes(part: Any) -> None:
    servers, words = part(OPTIONS)
    launches = [parse_launch(text) for text in servers.values()]
    assert len({launch.url for launch in launches}) == len(servers) >= 2
    assert "--speculative-config" not in launches[0].parts or "compare" not in part.__module__
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert parse_arm(options["--arm"])
    numbers = [int(number) for number in options["--concurrency"].split(",")]
    assert product([options["--prompts"]], numbers, (), (), {"max_tokens": options["--output-tokens"]})


def test_ratios_are_those_of_a_round_to_the_first_server() -> None:
    runs = [
        SimpleNamespace(arm=arm, load="chat", tokens_per_s=value)
        for arm, values in {"off": (100.0, 50.0), "table": (110.0, 75.0)}.items()
        for value in values
    ]
    found = serving.figures(
        SimpleNamespace(  # type: ignore[arg-type]
            servers=({"name": "off"}, {"name": "ours"}),
            arms=(SimpleNamespace(name="off", server=0), SimpleNamespace(name="table", server=1)),
            loads=(SimpleNamespace(title="chat"),),
            runs=runs,
            outputs=(),
        )
    )
    assert found["loads"]["chat"]["ours"]["against off"] == {
        "median": 1.3,
        "min": 1.1,
        "max": 1.5,
        "repeats": 2,
    }


def test_phases_go_up_through_the_numbers_and_down_again_with_the_other_kind() -> None:
    assert phases.phases([1, 16]) == [("copying", 1), ("chat", 16), ("copying", 16), ("chat", 1)]


def test_phases_measure_every_arm_of_every_phase(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["--requests", "2", "--settings", "0", "2", "--phase-s", "0.5"]
    found = report(phases, words, monkeypatch, tmp_path)
    assert list(found["phases"]) == ["copying-2", "chat-2"]
    for one in found["phases"].values():
        assert set(one["tokens_per_s"]) == {"off", "always 2", "autotune", "never enabled"}
        assert one["best_static"] != "never enabled"
        assert one["to_never_enabled"]["median"] > 0


def test_rates_measure_every_arm_at_every_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["--rates", "10", "--constants", "2", "--rate-s", "1"]
    found = report(rates, words, monkeypatch, tmp_path)
    assert list(found["rates"]) == ["10"]
    for row in found["rates"].values():
        assert set(row["ms per token"]) == {"always 2", "autotune balanced", "never enabled"}
        assert row["best"] in ("always 2", "never enabled")


def test_a_part_is_measured_on_servers_that_run_already(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = tmp_path / "report.json"
    with StreamingServer(step_s=0.01) as server, StreamingServer(has_plugin=False, step_s=0.01) as other:
        urls = [f"never enabled={other.url}", f"eagle3 at 0={server.url}"]
        words = ["off-cost", "--model", "model", "--urls", *urls, "--arm", "off", "--batch", "2"]
        words += ["--rounds", "1", "--seconds", "0.5", "--max-tokens", "8"]
        words += ["--folder", str(tmp_path), "--output", str(output)]
        monkeypatch.setattr("sys.argv", ["compare", *words])
        serving.parts_main("", "compare", {"off-cost": compare.off_cost})
    (row,) = json.loads(output.read_text())["loads"].values()
    assert list(row) == ["never enabled", "eagle3 at 0"]
    assert row["eagle3 at 0"]["against never enabled"]["median"] > 0


def report(
    module: ModuleType, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, Any]:
    output = tmp_path / "report.json"
    with StreamingServer(step_s=0.01) as server, StreamingServer(has_plugin=False, step_s=0.01) as other:
        common = ["--model", "model", "--rounds", "1", "--folder", str(tmp_path), "--output", str(output)]
        urls = ["--urls", server.url, other.url]
        command = [module.__name__, *common, *urls, "--max-tokens", "8", *words]
        monkeypatch.setattr("sys.argv", command)
        assert module.main() == 0
    found: dict[str, Any] = json.loads(output.read_text())
    return found
