"""Engines that stand on one GPU at the same time, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


class Arm:
    def __init__(self, name: str, model: str, engine: dict[str, Any], log: Path) -> None:
        self.name = name
        self.log = log.open("w")
        settings = json.dumps({"model": model, "engine": engine})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.engine_arm", settings],
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


def in_turn(arms: list[Arm], repeat: int) -> list[Arm]:
    """A B, then B A: the order of one repeat."""
    return arms if repeat % 2 == 0 else arms[::-1]


def speculative(method: str, **values: Any) -> dict[str, Any]:
    return {"speculative_config": {"method": method, "num_speculative_tokens": 4, **values}}
