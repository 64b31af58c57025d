"""``docs/support.md`` from ``tools/support.yaml``: what goes with speculation, and the test that shows it.

``tools.reference_pages`` writes it. A test that is named must exist; what no test shows is not known.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

from tools.results_figures import ROOT

__all__ = ["ENGINES", "FEATURES", "SOURCE", "Cell", "missing_tests", "read_cells", "support_page"]

SOURCE = ROOT / "tools" / "support.yaml"
ENGINES = {"vllm_v1": "vLLM V1", "vllm_v2": "vLLM V2", "sglang": "SGLang"}
FEATURES = {
    "prefix_caching": "Prefix caching",
    "chunked_prefill": "Chunked prefill",
    "preemption": "Preemption",
    "abort": "Abort",
    "lora": "LoRA",
    "multimodal": "Multimodal input",
    "logprobs": "Log probabilities",
    "penalties": "Penalties",
    "min_p": "Min-p",
    "logit_bias": "Logit bias",
    "bad_words": "Bad words",
    "min_tokens": "Least tokens before an end",
    "structured_output": "Structured output",
    "tools": "Tool calls",
    "kv_offload": "KV offload",
    "pd_disaggregation": "Prefill/decode disaggregation",
    "tensor_parallelism": "Tensor parallelism",
    "pipeline_parallelism": "Pipeline parallelism",
    "data_parallelism": "Data parallelism",
}
_STRICT = ConfigDict(extra="forbid", frozen=True)
_Tests = Annotated[tuple[str, ...], Field(min_length=1)]

INTRO = """<!-- Written by python -m tools.reference_pages. -->

What goes with speculation under a table that changes. Each entry names the test that shows it.

- **works**: answers with drafts are those without, while the table changes.
- **refused**: the start or the request is refused, or the method runs as stock; each says why.
- **not known**: no test shows it. It may work.

vLLM V1 and SGLang are tested on a CPU, vLLM V2 on a GPU.

"""


class Cell(BaseModel):
    """Of one feature on one engine: the tests that show it, as ``file::name`` under ``tests/``."""

    model_config = _STRICT

    works: _Tests | None = None
    refused: _Tests | None = None
    note: str = ""

    @property
    def tests(self) -> tuple[str, ...]:
        return (*(self.works or ()), *(self.refused or ()))


def read_cells(path: Path = SOURCE) -> dict[str, dict[str, Cell]]:
    """By feature, then engine; a cell that is missing is not known. Raises ValueError for an unknown name."""
    found: dict[str, dict[str, Cell]] = {}
    for feature, cells in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        unknown = {feature} - FEATURES.keys() or cells.keys() - ENGINES.keys()
        if unknown:
            raise ValueError(f"{path.name}: unknown {', '.join(sorted(unknown))} in {feature}")
        found[feature] = {engine: Cell.model_validate(cell) for engine, cell in cells.items()}
    return found


def missing_tests(cells: dict[str, dict[str, Cell]]) -> list[str]:
    """Named, and not there."""
    named = {test for row in cells.values() for cell in row.values() for test in cell.tests}
    return sorted(test for test in named if not _exists(test))


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return name in _names(ROOT / "tests" / file)


@cache
def _names(path: Path) -> frozenset[str]:
    """Of the tests in a file, those of a class as ``Class::name``."""
    if not path.is_file():
        return frozenset()
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = (
            [(f"{node.name}::", one) for one in node.body] if isinstance(node, ast.ClassDef) else [("", node)]
        )
        for prefix, one in inner:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_"):
                found.add(prefix + one.name)
    return frozenset(found)


def support_page() -> str:
    """Raises ValueError where a test that is named does not exist."""
    cells = read_cells()
    if missing := missing_tests(cells):
        raise ValueError(f"{SOURCE.name} names tests that do not exist: {', '.join(missing)}")
    lines = [f"| | {' | '.join(ENGINES.values())} |", "| --- |" + " --- |" * len(ENGINES)]
    for feature, title in FEATURES.items():
        row = [_words(cells.get(feature, {}).get(engine)) for engine in ENGINES]
        lines.append(f"| {title} | {' | '.join(row)} |")
    return "# What goes with speculation\n\n" + INTRO + "\n".join(lines) + "\n"


def _words(cell: Cell | None) -> str:
    if cell is None:
        return "not known"
    parts = [
        f"{state}: {', '.join(map(_link, tests))}"
        for state, tests in (("**works**", cell.works), ("**refused**", cell.refused))
        if tests
    ]
    words = "; ".join(parts or ["not known"])
    return f"{words}. {cell.note}" if cell.note else words


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[`{name.rpartition('::')[2]}`](../tests/{file})"
