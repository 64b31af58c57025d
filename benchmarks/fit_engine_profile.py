"""Fits policies/profiles/h200-llama8b-vllm032.yaml: whole-run tokens per second -> seconds of a step.

Eight parameters against 35 runs of an 8B-shaped Llama on one H200: the engines without speculation of
benchmarks/results/gpu-*.json, and runs of stock vLLM (below) whose drafts were accepted with a set chance.
Each run is replayed in lockstep: all prompts in one prefill, then steps until the last request has its
tokens. Run from the root: python -m benchmarks.fit_engine_profile
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.provenance import ROOT

RESULTS = ROOT / "benchmarks" / "results"
ACCEPTANCE = 0.7
# Stock vLLM on one H200, 8B-shaped Llama with dummy weights in bf16, CUDA graphs, 256-token prompts, 192
# output tokens, every next draft accepted with 0.7; whole-run tokens/s, one run each: (batch, drafts,
# tokens/s).
STOCK_OFF = ((1, 201), (4, 777), (16, 2798), (64, 7681), (128, 10844), (256, 12670))
# Method ngram: no asynchronous scheduling. 0.32.0 first, then 0.26.0 (another model runner).
STOCK_032 = ((1, 7, 475), (4, 7, 1591), (16, 7, 4692), (64, 3, 9089))
STOCK_026 = (
    *((1, 3, 309), (4, 3, 1099), (16, 3, 3254), (64, 3, 8531), (128, 3, 10131), (256, 3, 10630)),
    *((1, 7, 400), (4, 7, 1426), (16, 7, 4236), (64, 7, 7875), (128, 7, 8276), (256, 7, 8852)),
)
NAMES = ("memory_s", "token_s", "sharpness", "request_s", "context_s", "sync_s", "sync_request_s", "older_s")
FIRST = np.array([4.7e-3, 20e-6, 2.0, 5e-6, 3.3e-8, 1.2e-3, 12e-6, 1e-3])
LOWER = np.array([3e-3, 5e-6, 1.0, 0.0, 2.7e-8, 0.0, 0.0, 0.0])
UPPER = np.array([6e-3, 40e-6, 8.0, 40e-6, 6e-8, 4e-3, 40e-6, 6e-3])
GRID = (1, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 8192)


@dataclass(frozen=True)
class Run:
    batch: int
    drafts: int
    prompt: int
    output: int
    tokens_per_s: float
    is_synchronous: bool = False
    is_older: bool = False


def runs() -> list[Run]:
    """Every measured run that the fit takes."""
    found = [Run(b, 0, 256, 192, rate) for b, rate in STOCK_OFF]
    found += [Run(b, k, 256, 192, rate, is_synchronous=True) for b, k, rate in STOCK_032]
    found += [Run(b, k, 256, 192, rate, is_synchronous=True, is_older=True) for b, k, rate in STOCK_026]
    cost = _read("gpu-off-cost.json")["runs"]
    for part in cost:
        for name, synchronous in (("never enabled", False), ("never enabled, synchronous", True)):
            for batch, told in part["tokens per second"].get(name, {}).items():
                found.append(Run(int(batch), 0, 256, 192, told["median"], is_synchronous=synchronous))
    copying = _read("gpu-suffix-copying.json")["figures"]["arms"]["off"]
    found += [Run(int(b), 0, 377, 256, told["summary"]["median"]) for b, told in copying.items()]
    return found


def _read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text())


def step_s(p: np.ndarray, tokens: Any, batch: Any, context: Any) -> Any:
    """Seconds of one forward pass: memory-bound or compute-bound, with a soft corner."""
    forward = (p[0] ** p[2] + (p[1] * tokens) ** p[2]) ** (1.0 / p[2])
    return forward + p[3] * batch + p[4] * context


def run_s(p: np.ndarray, run: Run) -> float:
    alive, left = _course(run)
    done = run.output - left
    context = alive * (run.prompt + done)
    seconds = float(np.sum(step_s(p, alive * (1 + run.drafts), alive, context)))
    if run.is_synchronous:
        seconds += float(np.sum(p[5] + p[6] * alive))
    if run.is_older:
        seconds += p[7] * len(alive)
    return seconds + float(step_s(p, run.batch * run.prompt, run.batch, 0))


def _course(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """(requests alive, mean tokens left) by step; drafts accepted with ACCEPTANCE each, the same luck
    always."""
    rng = np.random.default_rng(0)
    left = np.full(run.batch, run.output - 1)
    alive, mean_left = [], []
    while (left > 0).any():
        active = left > 0
        alive.append(int(active.sum()))
        mean_left.append(float(left[active].mean()))
        luck = rng.random((run.batch, run.drafts)) < ACCEPTANCE
        accepted = np.cumprod(luck, axis=1).sum(axis=1) if run.drafts else 0
        left = left - active * (1 + accepted)
    return np.array(alive, float), np.array(mean_left)


def main() -> None:
    measured = runs()

    def misses(p: np.ndarray) -> np.ndarray:
        return np.array(
            [np.log(run_s(p, run) * run.tokens_per_s / (run.batch * run.output)) for run in measured]
        )

    fit = least_squares(misses, FIRST, bounds=(LOWER, UPPER), x_scale=FIRST)
    for name, value in zip(NAMES, fit.x, strict=True):
        print(f"{name:16} {value:.4g}")
    for run, miss in zip(measured, fit.fun, strict=True):
        kind = "older" if run.is_older else "sync" if run.is_synchronous else ""
        print(f"{run.batch:4} x {run.drafts} drafts {kind:5} {run.tokens_per_s:8.0f} tok/s  {-miss:+.1%}")
    print(f"root mean square {np.sqrt(np.mean(fit.fun**2)):.1%}, worst {np.abs(fit.fun).max():.1%}")
    for tokens in GRID:
        print(f"  - {{tokens: {tokens}, seconds: {step_s(fit.x, tokens, 0, 0):.6f}}}")


if __name__ == "__main__":
    main()
