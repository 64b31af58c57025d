"""The closed-loop part of the regret suite: requests are kept in flight, so the server bounds the tokens/s.

Shapes: ``specctl.simulate.shapes``. Perturbations of the truth: ``specctl.simulate.perturbation``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.regret_cells import Case, Task, TaskOptions
from specctl.simulate import shapes
from specctl.simulate.engine_profile import load_profile
from specctl.simulate.files import find_file
from specctl.simulate.perturbation import PERTURBATIONS

__all__ = ["CLOSED", "ClosedTask", "closed_tasks"]

CLOSED = {
    "closed loop" if name == "none" else "all at once" if name == "all" else name: name
    for name in PERTURBATIONS
}
"""The perturbation of each group."""


@dataclass(frozen=True)
class ClosedTask(Task):
    shape: str

    def case(self) -> Case:
        shape = next(one for one in shapes.shapes_of(self.profile, self.seed) if one.name == self.shape)
        return Case(
            shape.name, self.group, shape.load, shape.scenario, shape.profile, self.seed,
            PERTURBATIONS[CLOSED[self.group]], shape.settings,
        )  # fmt: skip


def closed_tasks(group: str, options: TaskOptions) -> Sequence[Task]:
    machine = load_profile(find_file(options.profile, "profiles"))
    return [
        ClosedTask(group, seed, options, shape.name)
        for seed in options.seeds
        for shape in shapes.shapes_of(machine, seed)
    ]
