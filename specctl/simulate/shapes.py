"""The loads of the closed-loop suite: requests in flight over time, with the acceptance that they meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specctl.contract.setting import Setting
from specctl.simulate.closed_loop import ClosedLoad, by_bin
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.files import find_file
from specctl.simulate.scenario import Scenario, load_scenario
from specctl.simulate.step_seconds import step_seconds

__all__ = ["MEDIUM", "SHAPES", "Shape", "break_even", "one_class", "shapes_of", "two_classes", "with_head"]

SPAN_S = 240.0
HIGH, MEDIUM, LOW = 0.9, 0.6, 0.1
FLIP_S = 15.0
WAKE_S = 120.0
WAVE_S = 30.0
WALK_S, WALK_STEP, WALK_REACH = 2.0, 0.04, 0.2
CONTEXT_TOKENS = 300
_Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Shape:
    """A load, the acceptance that it meets, and the prepared settings; none: the profile's chains."""

    name: str
    load: ClosedLoad
    scenario: Scenario
    profile: EngineProfile
    settings: tuple[Setting, ...] = field(default=())


def one_class(name: str, points: _Points, runner_up_shares: Sequence[float] = ()) -> Scenario:
    """One class; every position is accepted with the same chance."""
    laws = [{"from_s": from_s, "conditional_at": [chance]} for from_s, chance in points]
    one = {"name": "all", "share": 1.0, "points": laws, "runner_up_shares": list(runner_up_shares)}
    return Scenario.model_validate({"name": name, "classes": [one]})


def two_classes(first: float, second: float, first_share: float) -> Scenario:
    """Requests with one chance for every position, and requests with another."""
    classes = [
        {"name": name, "share": share, "points": [{"from_s": 0.0, "conditional_at": [chance]}]}
        for name, share, chance in (("first", first_share, first), ("second", 1.0 - first_share, second))
    ]
    return Scenario.model_validate({"name": "two kinds", "classes": classes})


def _square(profile: EngineProfile, seed: int) -> Shape:
    is_full = (by_bin(SPAN_S) // WAVE_S).astype(int) % 2 == 1
    load = ClosedLoad(np.where(is_full, 200, 1), SPAN_S)
    return Shape("square wave 1 / 200", load, one_class("medium", [(0.0, MEDIUM)]), profile)


def _diurnal(profile: EngineProfile, seed: int) -> Shape:
    """A day in four minutes, and a crowd for 20 s of it."""
    times = by_bin(SPAN_S)
    in_flight = np.rint(50 - 46 * np.cos(2 * math.pi * times / SPAN_S)).astype(np.int64)
    in_flight[(times >= 160) & (times < 180)] = 230
    return Shape("diurnal", ClosedLoad(in_flight, SPAN_S), one_class("medium", [(0.0, MEDIUM)]), profile)


def _flips(requests: int) -> Callable[[EngineProfile, int], Shape]:
    def make(profile: EngineProfile, seed: int) -> Shape:
        times = [FLIP_S * i for i in range(int(SPAN_S / FLIP_S))]
        points = [(from_s, LOW if i % 2 else HIGH) for i, from_s in enumerate(times)]
        pays = tuple((from_s, from_s + FLIP_S) for i, from_s in enumerate(times) if i and i % 2 == 0)
        load = ClosedLoad(np.array([requests]), SPAN_S, pays)
        return Shape(f"flips at {requests}", load, one_class("flips", points), profile)

    return make


def _wake(requests: int) -> Callable[[EngineProfile, int], Shape]:
    def make(profile: EngineProfile, seed: int) -> Shape:
        load = ClosedLoad(np.array([requests]), SPAN_S, ((WAKE_S, SPAN_S),))
        return Shape(f"wake at {requests}", load, one_class("wake", [(0.0, LOW), (WAKE_S, HIGH)]), profile)

    return make


def _break_even_walk(requests: int) -> Callable[[EngineProfile, int], Shape]:
    def make(profile: EngineProfile, seed: int) -> Shape:
        middle = break_even(profile, requests)
        rng = np.random.default_rng([seed, 4, requests])
        points, offset = [], 0.0
        for i in range(int(SPAN_S / WALK_S)):
            offset = float(np.clip(offset + rng.normal(0.0, WALK_STEP), -WALK_REACH, WALK_REACH))
            points.append((WALK_S * i, min(max(middle + offset, 0.01), 0.99)))
        load = ClosedLoad.constant(requests, SPAN_S)
        return Shape(f"break-even at {requests}", load, _walk(points), profile)

    return make


def _walk(points: _Points) -> Scenario:
    """A scenario takes 64 points: as many classes as needed would be another load, so the walk is thinned."""
    every = math.ceil(len(points) / 64)
    return one_class("walk", points[::every])


def break_even(profile: EngineProfile, requests: int) -> float:
    """The lowest acceptance at which some draft emits more tokens per second than off, without prompts."""
    costs = profile.step_costs()

    def seconds(depth: int) -> float:
        width = depth + 1
        return step_seconds(costs, requests, depth, width, requests * width, requests * CONTEXT_TOKENS, 0, 0)

    def tokens(depth: int, chance: float) -> float:
        return sum(chance**j for j in range(depth + 1))

    off_s = seconds(0)
    depths = range(1, profile.num_speculative_tokens_max + 1)
    chances = [n / 1000 for n in range(1, 1000)]
    return next(
        (c for c in chances if any(tokens(d, c) / seconds(d) > 1 / off_s for d in depths)), chances[-1]
    )


def _shipped(scenario: str, requests: int) -> Callable[[EngineProfile, int], Shape]:
    def make(profile: EngineProfile, seed: int) -> Shape:
        law = load_scenario(find_file(scenario, "scenarios"))
        return Shape(f"{scenario} at {requests}", ClosedLoad.constant(requests, SPAN_S), law, profile)

    return make


def _constant(name: str, chance: float, requests: int) -> Callable[[EngineProfile, int], Shape]:
    def make(profile: EngineProfile, seed: int) -> Shape:
        law = one_class(name, [(0.0, chance)])
        return Shape(f"{name} at {requests}", ClosedLoad.constant(requests, SPAN_S), law, profile)

    return make


def _tree(depth: int, topk: int, width: int) -> Setting:
    return Setting(num_speculative_tokens=depth, tree_topk=topk, verify_width_tokens=width)


TREE_SETTINGS = (
    *(Setting(num_speculative_tokens=depth) for depth in (0, 1, 2, 3, 5, 7)),
    _tree(3, 3, 8),
    _tree(5, 3, 8),
    _tree(5, 4, 16),
)
# Assumed, not measured: a draft head of one layer takes a twelfth of the target's forward pass, and its
# second choice hits half of what its first one misses.
HEAD_PASS_S = 4e-4
RUNNER_UP_SHARES = (0.45, 0.2, 0.1)


def with_head(profile: EngineProfile) -> EngineProfile:
    """The same machine with a draft head, which drafts trees in as many passes as they are deep."""
    draft = profile.draft.model_copy(update={"pass_s": HEAD_PASS_S})
    return profile.model_copy(update={"method": "draft head", "draft": draft})


def _trees(name: str, points: _Points, in_flight: Sequence[int]) -> Callable[[EngineProfile, int], Shape]:
    """``in_flight``: in turn, each for WAVE_S."""

    def make(profile: EngineProfile, seed: int) -> Shape:
        turns = (by_bin(SPAN_S) // WAVE_S).astype(np.int64) % len(in_flight)
        load = ClosedLoad(np.array(in_flight, np.int64)[turns], SPAN_S)
        law = one_class(name, points, RUNNER_UP_SHARES)
        return Shape(f"trees, {name}", load, law, with_head(profile), TREE_SETTINGS)

    return make


_PHASES = ((0.0, 0.85), (60.0, 0.1), (120.0, 0.55), (180.0, 0.7))
SHAPES: tuple[Callable[[EngineProfile, int], Shape], ...] = (
    _square,
    _diurnal,
    *(_flips(requests) for requests in (4, 32, 128)),
    *(_wake(requests) for requests in (4, 32, 128)),
    *(_break_even_walk(requests) for requests in (4, 32, 128)),
    _shipped("drifting", 48),
    _shipped("phase-changing", 24),
    _shipped("phase-changing", 128),
    _constant("high", HIGH, 16),
    _constant("medium", MEDIUM, 100),
    _constant("low", LOW, 64),
    _trees("medium at 4", [(0.0, MEDIUM)], (4,)),
    _trees("phases at 8", _PHASES, (8,)),
    _trees("phases, waves 4 / 96", _PHASES, (4, 96)),
)


def shapes_of(profile: EngineProfile, seed: int) -> list[Shape]:
    return [make(profile, seed) for make in SHAPES]
