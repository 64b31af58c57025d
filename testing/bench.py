"""``specctl bench`` as a user calls it, and its result."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from specctl.bench.results import BenchResult

__all__ = ["specctl_bench"]


def specctl_bench(arguments: Sequence[str], folder: Path) -> tuple[int, BenchResult]:
    """(exit code, result). Files are saved in the folder; what it prints is seen.

    Raises RuntimeError where it ends without a result.
    """
    saved = folder / "bench.json"
    saved.unlink(missing_ok=True)
    command = [sys.executable, "-m", "specctl.cli.main", "bench", *arguments, "--save", str(folder)]
    code = subprocess.run(command, check=False).returncode
    if not saved.exists():
        raise RuntimeError(f"specctl bench ended with exit code {code} and without a result")
    return code, BenchResult.model_validate_json(saved.read_text(encoding="utf-8"))
