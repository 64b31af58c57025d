"""A row of ``docs/results.md``: claim, figure, hardware, command, file; and what several rows share."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

H200 = "1 H200"
H100 = "1 H100"
H100_X2 = "2 H100"
H200_X2 = "2 H200"
CPU = "2 CPU cores"


class Row(NamedTuple):
    claim: str
    hardware: str
    # Empty: the file alone names it, since the benchmark is not kept.
    command: str
    file: str
    figure: Callable[[], str]


def row(
    claim: str, hardware: str, command: str, file: str, figure: Callable[..., str], *of: Any, **how: Any
) -> Row:
    """``figure`` reads the file: ``figure(file, *of, **how)``."""
    return Row(claim, hardware, command, file, partial(figure, file, *of, **how))


def table(rows: tuple[Row, ...]) -> str:
    """Rows of one file in succession name it once."""
    lines = ["| claim | measured | hardware | command and file |", "| --- | --- | --- | --- |"]
    before = ""
    for one in rows:
        command = f"`{one.command}`, " if one.command else ""
        source = "" if one.file == before else f"{command}{link(one.file)}"
        lines.append(f"| {one.claim} | {plain(one.figure())} | {one.hardware} | {source} |")
        before = one.file
    return "\n".join(lines)


def link(file: str) -> str:
    return f"[{file}](../benchmarks/results/{file})"


def plain(figure: str) -> str:
    """Loads in plain words; the kind of text and the repeats once where all figures have the same."""
    kind = re.match(r"(chat|copying|code\+chat), \d", figure)
    if kind and figure.count("; ") + 1 == figure.count(f"{kind[1]}, "):
        figure = f"{kind[1]}, " + figure.replace(f"{kind[1]}, ", "")
    figure = re.sub(r"(\d streams) at once", r"\1", figure)
    figure = re.sub(r"\b1 at once", "1 request", figure)
    figure = re.sub(r"(\d) at once", r"\1 requests", figure)
    figure = re.sub(r"([\d.]+) \(\1 to \1, 1 repeats\)", r"\1 (1 repeat)", figure)
    repeats = re.findall(r", (\d+ repeats)\)", figure)
    if len(repeats) > 1 and len(set(repeats)) == 1:
        return figure.replace(f", {repeats[0]})", ")") + f"; {repeats[0]}"
    return figure


COMPARE = "python -m benchmarks.gpu.compare"
SGLANG_COMPARE = "python -m benchmarks.gpu.sglang_compare"
VERIFY_BY_KERNEL = "python -m benchmarks.gpu.verify_by_kernel"

# Hardware, command and file of several rows.
SUFFIX = H200, f"{COMPARE} copying", "gpu-suffix-copying.json"
TENSOR_PARALLEL = H100_X2, f"{COMPARE} copying", "gpu-tensor-parallel.json"
