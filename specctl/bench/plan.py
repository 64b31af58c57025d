"""What a benchmark is to do, and what it has measured so far. No input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specctl.bench.arms import Arm
from specctl.bench.figures import Samples
from specctl.bench.loads import Load
from specctl.bench.records import RequestRecord
from specctl.bench.results import Run, TableSeen
from specctl.bench.run_load import LoadRun, Span
from specctl.bench.sender import Endpoint

__all__ = ["Measured", "Plan"]


@dataclass(frozen=True)
class Plan:
    """``most_rounds``: up to here rounds are added while an interval is wide; 0: none are. ``outputs``: how
    many greedy outputs are compared; 0: none. ``numbers_prompts``: each request begins with a number of its
    own. ``prompts_once``: no prompt comes twice."""

    arms: tuple[Arm, ...]
    baseline: str
    loads: tuple[Load, ...]
    rounds: int
    span: Span
    endpoint: Endpoint
    sampling: Mapping[str, Any] = field(default_factory=dict)
    most_rounds: int = 0
    ignore_eos: bool = False
    outputs: int = 16
    numbers_prompts: bool = True
    prompts_once: bool = False
    warm_up: bool = True
    api_key: str | None = None
    token_file: Path | None = None
    seed: int = 0


@dataclass
class Measured:
    """What an experiment has so far. ``records``: of the last round, for files of other tools."""

    runs: list[Run] = field(default_factory=list)
    samples: dict[tuple[str, str], Samples] = field(default_factory=dict)
    records: dict[tuple[str, str], LoadRun] = field(default_factory=dict)
    outputs: dict[str, dict[str, RequestRecord]] = field(default_factory=dict)
    tables: list[TableSeen] = field(default_factory=list)
    rounds: int = 0
    is_cut_short: bool = False
    warnings: list[str] = field(default_factory=list)
