"""Tells each capture of a CUDA graph in an engine's log: a general plugin of SGLang, for benchmarks alone.

    python -m benchmarks.gpu.entry_points FOLDER --captures

``counted`` reads such a log.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

__all__ = ["counted", "install"]

_MARK = "benchmark: a CUDA graph is captured"
_STARTED = "benchmark: CUDA graphs are counted"


def install() -> None:
    """In each process of the engine."""
    import torch

    original = torch.cuda.CUDAGraph.capture_begin

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        _tell(_MARK)
        return original(self, *args, **kwargs)

    torch.cuda.CUDAGraph.capture_begin = capture_begin
    _tell(_STARTED)


def _tell(line: str) -> None:
    # In one write: several processes share the log.
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def counted(log: Path) -> int | None:
    """Captures so far; None: nobody counted."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return text.count(_MARK) if _STARTED in text else None
