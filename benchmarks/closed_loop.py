"""The closed-loop part of the regret suite: requests are kept in flight, so the server bounds the tokens/s.

Shapes: ``specctl.simulate.shapes``. Perturbations of the truth: ``specctl.simulate.perturbation``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.regret_cells import Case, of_engine
from specctl.simulate import shapes
from specctl.simulate.engine_profile import load_profile
from specctl.simulate.files import find_file
from specctl.simulate.perturbation import PERTURBATIONS, Perturbation

__all__ = ["QUICK_PERTURBATIONS", "QUICK_SHAPES", "ClosedTask", "closed_tasks"]

QUICK_SHAPES = (
    "square wave 1 / 200",
    "flips at 32",
    "wake at 128",
    "break-even at 128",
    "trees, phases at 8",
)
QUICK_PERTURBATIONS = ("none", "all")


@dataclass(frozen=True)
class ClosedTask:
    """One engine's truth, with the perturbations of the telemetry to run the daemon under."""

    shape: str
    seed: int
    engine: Perturbation
    perturbations: tuple[str, ...]
    policy: str
    profile: str
    daemon: str | None

    def case(self) -> Case:
        profile = load_profile(find_file(self.profile, "profiles"))
        shape = next(one for one in shapes.shapes_of(profile, self.seed) if one.name == self.shape)
        kind = "trees" if shape.name.startswith("trees") else "chains"
        groups = {name: f"{kind}, {name}" for name in self.perturbations}
        return Case(
            shape.name, shape.load, shape.scenario, shape.profile, self.seed, groups,
            self.engine, shape.settings,
        )  # fmt: skip


def closed_tasks(
    seeds: Sequence[int],
    policy: str,
    profile: str,
    daemon: str | None,
    names: Sequence[str] = (),
    perturbations: Sequence[str] = (),
) -> Iterator[ClosedTask]:
    """``names``: texts of which a shape's name holds one; none: every shape."""
    machine = load_profile(find_file(profile, "profiles"))
    by_engine: dict[Perturbation, list[str]] = {}
    for name in perturbations or PERTURBATIONS:
        by_engine.setdefault(of_engine(PERTURBATIONS[name]), []).append(name)
    for seed in seeds:
        for shape in shapes.shapes_of(machine, seed):
            if names and not any(text in shape.name for text in names):
                continue
            for engine, group in by_engine.items():
                yield ClosedTask(shape.name, seed, engine, tuple(group), policy, profile, daemon)
