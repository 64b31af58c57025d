"""The files of a result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from specctl.bench.interchange import sglang_line, vllm_result
from specctl.bench.page import page
from specctl.bench.plan import Measured, Plan
from specctl.bench.results import BenchResult
from specctl.bench.servers import Server
from specctl.bench.words import markdown
from specctl.errors import BenchInputError

__all__ = ["save"]


def save(
    folder: Path, result: BenchResult, plan: Plan, servers: Sequence[Server], measured: Measured
) -> None:
    """bench.json, .md and .html, and the last round as files of vLLM's and SGLang's own benchmarks.

    Raises BenchInputError.
    """
    try:
        (folder / "bench.json").write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (folder / "bench.md").write_text(markdown(result), encoding="utf-8")
        (folder / "bench.html").write_text(page(result), encoding="utf-8")
        _save_others(folder, plan, servers, measured)
    except OSError as error:
        raise BenchInputError(f"--save {folder}: {error.strerror}") from error


def _save_others(folder: Path, plan: Plan, servers: Sequence[Server], measured: Measured) -> None:
    """The last round as files of vLLM's and SGLang's own benchmarks."""
    loads = {load.title: load for load in plan.loads}
    models = {arm.name: servers[arm.server].model for arm in plan.arms}
    last = {(run.arm, run.load): run for run in measured.runs}
    lines = []
    for (arm, title), run in measured.records.items():
        acceptance = last[arm, title].acceptance
        at_once = loads[title].concurrency
        vllm = vllm_result(run, acceptance, model=models[arm], backend=plan.endpoint, concurrency=at_once)
        name = "".join(c if c.isalnum() else "-" for c in f"{arm}-{title}")
        (folder / f"vllm-{name}.json").write_text(json.dumps(vllm) + "\n", encoding="utf-8")
        line = sglang_line(run, acceptance, backend=plan.endpoint, concurrency=at_once)
        lines.append(json.dumps({"tag": f"{arm}: {title}", **line}) + "\n")
    (folder / "sglang.jsonl").write_text("".join(lines), encoding="utf-8")
