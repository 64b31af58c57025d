"""``specctl bench`` as a user calls it, and its result."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from specctl.bench.results import BenchResult

__all__ = ["options_of", "specctl_bench"]


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


def options_of(
    description: str | None, *, seconds: float, flags: Sequence[tuple[str, str]] = ()
) -> argparse.Namespace:
    """The command line of a benchmark of the reference models at several numbers of requests.

    seconds: of a run, where the command line names none. flags: more options without a value, and their help.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    for flag, words in flags:
        parser.add_argument(flag, action="store_true", help=words)
    parser.add_argument("--models", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--requests", default="1,4,8", help="at once, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()
