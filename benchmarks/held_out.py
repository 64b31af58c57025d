"""Loads that nothing was tuned on: other seeds, other shapes, other machines.

Random walks of the acceptance, bursts, slow ramps, long answers, requests of two kinds; a profile measured on
an H200; two made machines, whose step seconds rise from few or only from many tokens on; and one as slow as a
CPU, with 1 to 8 requests. The made machines are assumptions, not measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from benchmarks.regret_cells import Case, Task, TaskOptions
from specctl.simulate.closed_loop import ClosedLoad, by_bin
from specctl.simulate.engine_profile import EngineProfile, load_profile
from specctl.simulate.files import find_file
from specctl.simulate.perturbation import PERTURBATIONS
from specctl.simulate.scenario import Scenario
from specctl.simulate.shapes import (
    MEDIUM,
    RUNNER_UP_SHARES,
    TREE_SETTINGS,
    Shape,
    one_class,
    two_classes,
    with_head,
)

__all__ = ["HELD_OUT", "HeldOutTask", "held_out_tasks", "slow_machine"]

HELD_OUT = {
    "held out": ("fast", "none"),
    "held out, all at once": ("fast", "all"),
    "held out, stretches": ("fast", "stretches"),
    "held out, slow machine": ("slow", "none"),
    "held out, slow machine, all at once": ("slow", "all"),
    "held out, slow machine, stretches": ("slow", "stretches"),
}
"""Machines and perturbation of each group."""
SEED = 100
"""Added to every seed."""
SPAN_S, SLOW_SPAN_S = 240.0, 360.0
POINTS = 60
"""A scenario takes 64."""
WALK_LOGITS = 0.5
LONG_CONTEXT_TOKENS = 4096
_Points = list[tuple[float, float]]
_Make = Callable[[EngineProfile, np.random.Generator], Shape]


@dataclass(frozen=True)
class HeldOutTask(Task):
    load: str

    def case(self) -> Case:
        machines, perturbation = HELD_OUT[self.group]
        seed = SEED + self.seed
        shape = _made(LOADS[machines][self.load], self.load, self.profile, seed)
        return Case(
            shape.name, self.group, shape.load, shape.scenario, shape.profile, seed,
            PERTURBATIONS[perturbation], shape.settings,
        )  # fmt: skip


def held_out_tasks(group: str, options: TaskOptions) -> Sequence[Task]:
    return [
        HeldOutTask(group, seed, options, load)
        for seed in options.seeds
        for load in LOADS[HELD_OUT[group][0]]
    ]


def _made(make: _Make, name: str, profile: EngineProfile, seed: int) -> Shape:
    return replace(make(profile, np.random.default_rng([seed, 5, *name.encode()])), name=name)


def _walk_points(rng: np.random.Generator, span_s: float) -> _Points:
    """A walk in log odds, from one end of what drafts reach to the other and back."""
    logit, points = float(rng.uniform(-1.5, 1.5)), []
    for place in range(POINTS):
        points.append((span_s * place / POINTS, float(1.0 / (1.0 + np.exp(-logit)))))
        logit = float(np.clip(logit + rng.normal(0.0, WALK_LOGITS), -3.0, 3.0))
    return points


def _walk(requests: int, **lengths: float) -> _Make:
    def make(profile: EngineProfile, rng: np.random.Generator) -> Shape:
        span_s = _span_s(profile)
        law = one_class("walk", _walk_points(rng, span_s))
        return _shape(ClosedLoad(np.array([requests]), span_s, **_lengths(profile, lengths)), law, profile)

    return make


def _bursts(levels: Sequence[int], *, is_walk: bool = False) -> _Make:
    """Requests in flight jump between ``levels``, each held for 8 s in the mean."""

    def make(profile: EngineProfile, rng: np.random.Generator) -> Shape:
        times = by_bin(_span_s(profile))
        starts = np.cumsum(rng.exponential(8.0, 200))
        drawn = rng.choice(levels, len(starts) + 1)
        in_flight = drawn[np.searchsorted(starts, times, side="right")].astype(np.int64)
        points = _walk_points(rng, _span_s(profile)) if is_walk else [(0.0, MEDIUM)]
        load = ClosedLoad(in_flight, _span_s(profile), **_lengths(profile, {}))
        return _shape(load, one_class("bursts", points), profile)

    return make


def _turns(requests: int, high: float, low: float) -> _Make:
    """The acceptance turns at times of an exponential distribution, 20 s in the mean."""

    def make(profile: EngineProfile, rng: np.random.Generator) -> Shape:
        span_s = _span_s(profile)
        times = [0.0, *np.cumsum(5.0 + rng.exponential(20.0, POINTS)).tolist()]
        times = [time for time in times if time < span_s]
        points = [(from_s, low if i % 2 else high) for i, from_s in enumerate(times)]
        pays = [
            (from_s, to_s) for i, (from_s, to_s) in enumerate(pairwise([*times, span_s])) if i and not i % 2
        ]
        load = ClosedLoad(np.array([requests]), span_s, tuple(pays), **_lengths(profile, {}))
        return _shape(load, one_class("turns", points), profile)

    return make


def _two_kinds(requests: int, copying_share: float) -> _Make:
    """Requests that copy, and requests whose text cannot be guessed."""

    def make(profile: EngineProfile, rng: np.random.Generator) -> Shape:
        load = ClosedLoad(np.array([requests]), _span_s(profile), **_lengths(profile, {}))
        return _shape(load, two_classes(0.9, 0.05, copying_share), profile)

    return make


def _ramp(low: int, high: int) -> _Make:
    """Requests rise slowly and fall at once, three times, while the acceptance falls."""

    def make(profile: EngineProfile, rng: np.random.Generator) -> Shape:
        span_s = _span_s(profile)
        in_flight = np.rint(low + (high - low) * (by_bin(span_s) * 3.0 / span_s % 1.0)).astype(np.int64)
        points = [(span_s * i / POINTS, 0.8 - 0.6 * i / POINTS) for i in range(POINTS)]
        return _shape(
            ClosedLoad(in_flight, span_s, **_lengths(profile, {})), one_class("ramp", points), profile
        )

    return make


def _trees(requests: int) -> _Make:
    def make(profile: EngineProfile, rng: np.random.Generator) -> Shape:
        law = one_class("walk", _walk_points(rng, SPAN_S), RUNNER_UP_SHARES)
        load = ClosedLoad.constant(requests, SPAN_S)
        return Shape("", load, law, with_head(profile), TREE_SETTINGS)

    return make


def _on(machine: Callable[[EngineProfile], EngineProfile], make: _Make) -> _Make:
    return lambda profile, rng: make(machine(profile), rng)


def _shape(load: ClosedLoad, law: Scenario, profile: EngineProfile) -> Shape:
    return Shape("", load, law, profile)


def _span_s(profile: EngineProfile) -> float:
    return SLOW_SPAN_S if profile.fingerprint.gpu == "cpu" else SPAN_S


def _lengths(profile: EngineProfile, lengths: dict[str, float]) -> dict[str, float]:
    """Prompts and outputs of a slow machine are short."""
    slow = {"prompt_median_tokens": 60.0, "output_median_tokens": 100.0}
    return {**(slow if profile.fingerprint.gpu == "cpu" else {}), **lengths}


def _measured(profile: EngineProfile) -> EngineProfile:
    """As `specctl profile` measured an H200, with room for the suite's lengths."""
    found = load_profile(find_file("h200-llama8b-vllm032-measured", "profiles"))
    scheduler = found.scheduler.model_copy(update={"max_model_len": LONG_CONTEXT_TOKENS})
    return found.model_copy(update={"scheduler": scheduler})


def _machine(
    profile: EngineProfile, gpu: str, points: Sequence[tuple[int, float]], **more: object
) -> EngineProfile:
    fields = profile.model_dump()
    fields["fingerprint"]["gpu"] = gpu
    fields["forward"] = [{"tokens": tokens, "seconds": seconds} for tokens, seconds in points]
    return EngineProfile.model_validate({**fields, **more})


def _early(profile: EngineProfile) -> EngineProfile:
    """Tokens cost from the first dozens on, as on a GPU with little compute for its memory's speed."""
    points = [(1, 0.0125), (16, 0.0131), (64, 0.0205), (256, 0.055), (2048, 0.4), (8192, 1.6)]
    return _machine(profile, "made, early", points)


def _late(profile: EngineProfile) -> EngineProfile:
    """A large model whose weights take long to read: hundreds of tokens are nearly free."""
    points = [(1, 0.03), (256, 0.032), (512, 0.042), (2048, 0.12), (8192, 0.46)]
    return _machine(profile, "made, late", points)


def slow_machine(profile: EngineProfile) -> EngineProfile:
    """45 ms a step, and 2.5 % more for each drafted token of a lone request; 10 % noise between steps."""
    points = [(1, 0.045), (8, 0.053), (16, 0.063), (72, 0.135), (2048, 2.6)]
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 2048, "kv_tokens": 65536}
    limits |= {"kv_block_tokens": 16, "max_model_len": LONG_CONTEXT_TOKENS}
    return _machine(
        profile, "cpu", points, scheduler=limits, context_token_s=1e-6, prefill_pair_s=0.0,
        graph_requests=(), graph_tokens_max=0, jitter_ratio=0.1, draft={"base_s": 5e-4, "request_s": 1e-4},
    )  # fmt: skip


LOADS: dict[str, dict[str, _Make]] = {
    "fast": {
        "walk at 16": _walk(16),
        "walk at 64": _walk(64),
        "walk, long answers at 24": _walk(24, prompt_median_tokens=600.0, output_median_tokens=900.0),
        "bursts 2 to 180": _bursts((2, 12, 60, 180)),
        "bursts 4 to 100, walk": _bursts((4, 30, 100), is_walk=True),
        "turns at 10": _turns(10, 0.85, 0.05),
        "turns at 100": _turns(100, 0.95, 0.2),
        "ramps 4 to 160": _ramp(4, 160),
        "two kinds at 4": _two_kinds(4, 0.5),
        "two kinds at 24": _two_kinds(24, 0.5),
        "trees, walk at 16": _trees(16),
        "measured H200, walk at 48": _on(_measured, _walk(48)),
        "measured H200, bursts 2 to 180": _on(_measured, _bursts((2, 12, 60, 180))),
        "early machine, walk at 8": _on(_early, _walk(8)),
        "early machine, bursts 2 to 60": _on(_early, _bursts((2, 12, 60))),
        "late machine, walk at 48": _on(_late, _walk(48)),
        "late machine, turns at 128": _on(_late, _turns(128, 0.8, 0.1)),
    },
    "slow": {
        "slow machine, walk at 1": _on(slow_machine, _walk(1)),
        "slow machine, walk at 4": _on(slow_machine, _walk(4)),
        "slow machine, walk at 8": _on(slow_machine, _walk(8)),
        "slow machine, bursts 1 to 8": _on(slow_machine, _bursts((1, 2, 4, 8))),
        "slow machine, turns at 4": _on(slow_machine, _turns(4, 0.8, 0.05)),
        "slow machine, two kinds at 2": _on(slow_machine, _two_kinds(2, 0.6)),
    },
}  # fmt: skip
