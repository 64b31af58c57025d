"""The search ends with the best setting, its launch line, a policy that loads, and the other workloads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest
from fakes.engine import FakeEngine

from specctl.bench import search as module
from specctl.bench.advice import chosen_by_batch, launch_line, policy_text
from specctl.bench.arms import Arm, ArmKind
from specctl.bench.loads import Load
from specctl.bench.plan import Measured, Plan
from specctl.bench.results import Run
from specctl.bench.run_load import Span
from specctl.bench.search import OVERHEAD_S, candidates, search, spread
from specctl.bench.servers import Server
from specctl.contract.setting import Setting
from specctl.engine_api.client import EngineClient
from specctl.errors import BenchInputError
from specctl.policy.loader import parse_policy

OFF = Setting(num_speculative_tokens=0)


class Quiet:
    def begin(self, runs: int) -> None: ...

    def live(self, title: str, tokens_per_s: float | None) -> None: ...

    def ended(self, run: Run) -> None: ...


class Simulated:
    """In place of an experiment: the speed of a setting, by number of drafts, and a little noise."""

    plans: ClassVar[list[Plan]] = []
    now_s: ClassVar[float] = 0.0
    speeds: ClassVar[dict[int, float]] = {0: 10.0, 1: 11.0, 2: 12.0, 4: 14.0, 8: 8.0}

    def __init__(self, plan: Plan, *_: object) -> None:
        self.plans.append(plan)
        self.plan = plan

    async def run(self) -> Measured:
        runs = self.plan.rounds * len(self.plan.arms) * len(self.plan.loads)
        Simulated.now_s += runs * ((self.plan.span.seconds or 0.0) + OVERHEAD_S)
        speeds = {
            (arm.name, load.title): self.speeds[arm.setting.num_speculative_tokens]
            * (0.5 if load.prompts == "sql" and arm.name != "off" else 1.0)
            for arm in self.plan.arms
            if arm.setting is not None
            for load in self.plan.loads
        }
        return Measured(runs=runs_of(speeds, self.plan.rounds), rounds=self.plan.rounds)


def test_the_best_setting_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Experiment", Simulated)
    monkeypatch.setattr(Simulated, "plans", [])
    monkeypatch.setattr(Simulated, "now_s", 0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: Simulated.now_s))
    loads = (Load(prompts="chat", concurrency=2),)
    off = Arm(name="off", kind=ArmKind.SETTING, setting=OFF)
    plan = Plan((off,), "off", loads, 6, Span(1.0), "completions")
    capabilities = FakeEngine(legal=(0, 1, 2, 4, 8)).capabilities()
    server = Server("mine", "http://127.0.0.1:1", "m", cast(EngineClient, None), capabilities)
    found = asyncio.run(search(plan, [server], Quiet(), tmp_path, minutes=10.0)).report
    assert [len(one.arms) for one in Simulated.plans] == [5, 3, 2]
    assert found["setting"]["num_speculative_tokens"] == 4
    assert found["launch"].endswith('\'{"method": "specctl_suffix", "num_speculative_tokens": 4}\'')
    assert parse_policy(found["policy"], "found").kind == "fixed"
    assert "faster by 40.0 %" in found["verdict"]
    assert "other workloads lose by it: sql" in found["verdict"]
    assert 500 < Simulated.now_s < 610


def test_a_budget_that_is_too_small_is_refused(tmp_path: Path) -> None:
    capabilities = FakeEngine(legal=(0, 1, 2, 4, 8)).capabilities()
    server = Server("mine", "http://127.0.0.1:1", "m", cast(EngineClient, None), capabilities)
    plan = Plan((), "off", (Load(prompts="chat", concurrency=2),), 6, Span(1.0), "completions")
    with pytest.raises(BenchInputError, match="minutes"):
        asyncio.run(search(plan, [server], Quiet(), tmp_path, minutes=0.05))


def test_candidates_leave_off_out_and_are_spread() -> None:
    settings = [Setting(num_speculative_tokens=n) for n in range(9)]
    assert [one.num_speculative_tokens for one in candidates(settings)] == list(range(1, 9))
    assert [one.num_speculative_tokens for one in spread(candidates(settings), 3)] == [1, 5, 8]


@pytest.mark.parametrize(
    ("launch", "engine", "method", "setting", "expected"),
    [
        (None, "vllm", "ngram", Setting(num_speculative_tokens=3), "vllm serve m --speculative-config"),
        (None, "vllm", "ngram", OFF, "vllm serve m"),
        (
            'vllm serve m --speculative-config \'{"method": "eagle3", "model": "d"}\' --port 1',
            "vllm",
            "eagle3",
            Setting(num_speculative_tokens=2),
            'vllm serve m --port 1 --speculative-config \'{"method": "eagle3", "model": "d", '
            '"num_speculative_tokens": 2}\'',
        ),
        (
            "python -m sglang.launch_server --model-path m --speculative-num-steps 9",
            "sglang",
            "EAGLE3",
            Setting(num_speculative_tokens=5, tree_topk=3, verify_width_tokens=16),
            "python -m sglang.launch_server --model-path m --speculative-algorithm EAGLE3 "
            "--speculative-num-steps 5 --speculative-eagle-topk 3 --speculative-num-draft-tokens 16",
        ),
    ],
)
def test_launch_lines(launch: str | None, engine: str, method: str, setting: Setting, expected: str) -> None:
    capabilities = SimpleNamespace(engine=engine, method=method, model="m")
    line = launch_line(SimpleNamespace(capabilities=capabilities, launch=launch), setting)  # type: ignore[arg-type]
    assert line.startswith(expected)


def runs_of(speeds: dict[tuple[str, str], float], rounds: int = 3) -> list[Run]:
    known = dict.fromkeys(["prompt_tokens", "steady_tokens_per_s", "decode_tokens_per_s", "acceptance"])
    known |= dict.fromkeys(["ttft", "tpot", "itl", "e2el"])
    counts = {"place": 0, "requests": 1, "cut_off": 0, "failed": 0, "output_tokens": 1}
    return [
        Run.model_validate(
            {**known, **counts, "arm": arm, "load": load, "round": i, "started_s": 0.0, "seconds": 1.0}
            | {"tokens_per_s": speed, "requests_per_s": 1.0, "speed": speed * (1 + 0.001 * i)}
        )
        for (arm, load), speed in speeds.items()
        for i in range(rounds)
    ]


def test_a_setting_that_pays_at_one_number_of_requests_only_becomes_thresholds() -> None:
    eight = Setting(num_speculative_tokens=8)
    arms = [
        Arm(name="off", kind=ArmKind.SETTING, setting=OFF),
        Arm(name="always 8", kind=ArmKind.SETTING, setting=eight),
    ]
    loads = [Load(prompts="chat", concurrency=n) for n in (1, 8)]
    alone, many = (load.title for load in loads)
    speeds = {("off", alone): 10.0, ("off", many): 50.0, ("always 8", alone): 20.0, ("always 8", many): 40.0}
    rows = chosen_by_batch(arms, loads, runs_of(speeds), eight)
    assert rows == [(1, eight), (None, OFF)]
    assert parse_policy(policy_text(rows), "found").kind == "thresholds"
