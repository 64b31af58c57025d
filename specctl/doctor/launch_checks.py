"""Everything that can be said of a launch command before it runs."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from specctl.checkpoints.config import CheckpointError
from specctl.checkpoints.facts import ModelFacts, read_facts
from specctl.doctor import environment_checks
from specctl.doctor.environment_checks import environment_findings
from specctl.doctor.finding import error
from specctl.doctor.launch_line import Launch
from specctl.doctor.launch_sglang import SglangLaunch
from specctl.doctor.launch_vllm import VllmLaunch
from specctl.doctor.memory_checks import memory_findings
from specctl.doctor.report import Report

__all__ = ["Given", "examine_launch", "gpu_memory_bytes"]


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says of the machine that the command is for. None: not said."""

    gpu_memory_bytes: float | None = None
    engine_version: str | None = None
    on_cpu: bool = False


def examine_launch(launch: Launch, given: Given, words: str) -> Report:
    report = Report(words)
    target = _target(launch, report)
    read = (
        SglangLaunch(launch, target)
        if launch.engine == "sglang"
        else VllmLaunch(launch, target, given.on_cpu, given.gpu_memory_bytes)
    )
    report.add(*read.findings())
    report.checked += ["speculative options", "draft", "metrics", "graphs", "model runner"]
    report.add(
        *environment_findings(launch, asks_specctl=read.asks_specctl, version_given=given.engine_version)
    )
    if environment_checks.engine_version(launch.engine) is None:
        report.skipped.append(f"plugin: {launch.engine} is not installed in this environment")
    else:
        report.checked.append("plugin")
    if given.engine_version or environment_checks.engine_version(launch.engine):
        report.checked.append("engine's release")
    report.skipped += read.skipped
    _add_memory(report, read, target, given)
    return report


def _target(launch: Launch, report: Report) -> ModelFacts | None:
    if launch.model is None:
        report.add(
            error("no-model", "the command names no model", "no MODEL and no --model", "name the model")
        )
        return None
    folder = launch.model_folder
    if folder is None:
        report.skipped.append(
            f"sizes of {launch.model}: not a folder of this machine, and no network is used; download it "
            "and name the folder to have them checked"
        )
        return None
    if (folder / "params.json").is_file() and not (folder / "config.json").is_file():
        report.skipped.append(f"sizes of {folder}: in Mistral's own format (params.json)")
        return None
    try:
        return read_facts(folder)
    except CheckpointError as reason:
        report.add(
            error("model-unreadable", "the model's folder cannot be read", str(reason), "name a model folder")
        )
        return None


def _add_memory(
    report: Report, read: SglangLaunch | VllmLaunch, target: ModelFacts | None, given: Given
) -> None:
    memory = given.gpu_memory_bytes
    if given.on_cpu:
        report.skipped.append("memory of a device: the command is for a CPU")
    elif memory is None:
        report.skipped.append("memory: no GPU is seen here; name it with --gpu-memory 80G")
    elif target is None:
        report.skipped.append("memory: the model's sizes are not known")
    else:
        report.add(*memory_findings(read.memory_plan(), target, read.draft, memory, read.memory_share))
        report.checked.append("memory")


def gpu_memory_bytes() -> float | None:
    """Of the smallest GPU of this machine; None: there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        return min(float(line) for line in done.stdout.split()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
