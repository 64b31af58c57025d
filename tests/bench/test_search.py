"""The search ends with the best setting, its launch line, a policy that loads, and the other workloads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.streaming import StreamingServer

from specctl.bench import search as module
from specctl.bench.advice import chosen_by_batch, launch_line, policy_text
from specctl.bench.arms import Arm, ArmKind
from specctl.bench.experiment import Plan
from specctl.bench.loads import Load
from specctl.bench.results import Run
from specctl.bench.run_load import Span
from specctl.bench.search import candidates, search, spread
from specctl.bench.servers import open_server
from specctl.contract.setting import Setting
from specctl.policy.loader import parse_policy

OFF = Setting(num_speculative_tokens=0)


class Quiet:
    def begin(self, runs: int) -> None: ...

    def live(self, title: str, tokens_per_s: float | None) -> None: ...

    def ended(self, run: Run) -> None: ...


def test_the_best_setting_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUN_MIN_S", 0.15)
    monkeypatch.setattr(module, "OVERHEAD_S", 0.02)
    off = Arm(name="off", kind=ArmKind.SETTING, setting=OFF)
    loads = (Load(prompts="chat", concurrency=2, max_tokens=16),)
    plan = Plan((off,), "off", loads, 3, Span(1.0), "completions")

    async def found(url: str) -> module.Found:
        server = await open_server("mine", url, token=None)
        try:
            return await search(plan, [server], Quiet(), tmp_path, minutes=0.15)
        finally:
            await server.client.close()

    with StreamingServer({0: 2, 1: 1, 2: 3, 4: 6, 8: 1}) as server:
        told = asyncio.run(found(server.url)).told
        assert server.engine.live.read().lease_remaining_s is None
    assert "faster by" in told["verdict"]
    assert told["setting"]["num_speculative_tokens"] == 4
    assert told["launch"].endswith('\'{"method": "specctl_suffix", "num_speculative_tokens": 4}\'')
    assert parse_policy(told["policy"], "found").kind == "fixed"
    assert len(told["others"]) >= 1


def test_candidates_leave_off_out_and_are_spread() -> None:
    settings = [Setting(num_speculative_tokens=n) for n in range(9)]
    assert [one.num_speculative_tokens for one in candidates(settings)] == list(range(1, 9))
    assert [one.num_speculative_tokens for one in spread(candidates(settings), 3)] == [1, 4, 8]


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
            "\"num_speculative_tokens\": 2}'",
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
    told = SimpleNamespace(engine=engine, method=method, model="m")
    line = launch_line(SimpleNamespace(capabilities=told, launch=launch), setting)  # type: ignore[arg-type]
    assert line.startswith(expected)


def runs_of(speeds: dict[tuple[str, str], float]) -> list[Run]:
    known = dict.fromkeys(["prompt_tokens", "steady_tokens_per_s", "decode_tokens_per_s", "acceptance"])
    known |= dict.fromkeys(["ttft", "tpot", "itl", "e2el"])
    counts = {"place": 0, "requests": 1, "cut_off": 0, "failed": 0, "output_tokens": 1}
    return [
        Run.model_validate(
            {**known, **counts, "arm": arm, "load": load, "round": i, "started_s": 0.0, "seconds": 1.0}
            | {"tokens_per_s": speed, "requests_per_s": 1.0, "speed": speed * (1 + 0.001 * i)}
        )
        for (arm, load), speed in speeds.items()
        for i in range(3)
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
