"""Engines that stand on one GPU at the same time, each in a process of its own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Arm:
    def __init__(self, name: str, model: str, engine: dict[str, Any], log: Path) -> None:
        self.name = name
        self.log = log.open("w")
        settings = json.dumps({"model": model, "engine": engine})
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("gpu_engine_arm.py")), settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def read(self) -> dict[str, Any] | None:
        """The next answer; None where the engine has died."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ARM "):
                found: dict[str, Any] = json.loads(line[4:])
                return found
            self.log.write(line)
        return None

    def run(
        self, prompts: list[list[int]], max_tokens: int, wants_outputs: bool = False, **values: Any
    ) -> dict[str, Any] | None:
        work = {"prompts": prompts, "max_tokens": max_tokens, "wants_outputs": wants_outputs, **values}
        assert self.process.stdin is not None
        try:
            print(json.dumps(work), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return None
        return self.read()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


def started(arms: dict[str, dict[str, Any]], model: str, folder: Path) -> list[Arm]:
    """All arms that came up; they start at the same time."""
    starting = [Arm(name, model, engine, folder / f"{name}.log") for name, engine in arms.items()]
    ready = []
    for arm in starting:
        answer = arm.read()
        print(f"{arm.name}: {'ready' if answer else 'DIED, see its log'} {answer}", flush=True)
        if answer:
            ready.append(arm)
    return ready


def margins(
    judge: Arm, prompts: Sequence[list[int]], outputs: Sequence[list[int]], truth: Sequence[list[int]]
) -> dict[int, float]:
    """Where an answer parts from the true one: by how much ``judge`` prefers one of the two tokens, in log
    probability, after the shared beginning as a prompt. Infinite where one is not among its first two."""
    parted = {}
    for i, (mine, other) in enumerate(zip(outputs, truth, strict=True)):
        at = next((at for at, pair in enumerate(zip(mine, other, strict=True)) if pair[0] != pair[1]), None)
        if at is not None:
            parted[i] = (prompts[i] + other[:at], other[at], mine[at])
    if not parted:
        return {}
    answer = judge.run([one[0] for one in parted.values()], 1, sampling={"logprobs": 2})
    if answer is None:
        raise RuntimeError(f"{judge.name} has died")
    found = {}
    for (i, (_, *pair)), scores in zip(parted.items(), answer["logprobs"], strict=True):
        values = [scores.get(str(token), -math.inf) for token in pair]
        found[i] = abs(values[0] - values[1]) if min(values) > -math.inf else math.inf
    return found


def speculative(method: str, **values: Any) -> dict[str, Any]:
    return {"speculative_config": {"method": method, "num_speculative_tokens": 4, **values}}
