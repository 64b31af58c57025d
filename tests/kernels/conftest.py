"""On a GPU most cases of a twin compile a kernel, minutes for a file: parts of it may run side by side."""

from __future__ import annotations

import os
from typing import Any


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """SPECCTL_TWIN_PART, "I/N": every Nth test from the Ith (from 0) on."""
    part, parts = map(int, os.environ.get("SPECCTL_TWIN_PART", "0/1").split("/"))
    items[:] = items[part::parts]
