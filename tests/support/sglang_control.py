"""The control routes and the completions of one real SGLang server, for tests."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.engine_control import Control

from benchmarks.server import SGLANG_PYTHON, sglang_server

__all__ = [
    "LISTING",
    "NEEDS_SGLANG",
    "PROMPTS",
    "SglangControl",
    "cells_by_number",
    "controlled_sglang_server",
    "rows",
]

NEEDS_SGLANG = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not SGLANG_PYTHON.is_file(),
        reason="SGLang's environment is not there; make setup-sglang makes it, or set SPECCTL_SGLANG_PYTHON",
    ),
]
LISTING = "".join(f"item_{i} = load('{name}', retries=3)\n" for i, name in enumerate(["a", "b", "c", "d"]))
PROMPTS = [
    LISTING + LISTING + "item_0",
    "The capital of France is",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    "1, 2, 3, 4, 5, 6, 7,",
]


def rows(tokens: int, topk: int = 1) -> list[dict[str, Any]]:
    return [{"decode_batch_from": 1, "num_speculative_tokens": tokens, "tree_topk": topk}]


def cells_by_number(control: Control) -> dict[int, list[dict[str, Any]]]:
    """Without that of prompts alone."""
    found: dict[int, list[dict[str, Any]]] = {}
    for cell in control.get("telemetry")["cells"]:
        if not cell["decode_batch_to"]:
            continue
        found.setdefault(cell["num_speculative_tokens"], []).append(cell)
    return found


class SglangControl(Control):
    """Completions by SGLang's own route, which tells the ids of the tokens."""

    def generate(self, prompt: str, max_tokens: int = 32, **more: Any) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
        sampling |= more.pop("sampling", {})
        answer = self.client.post("/generate", json={"text": prompt, "sampling_params": sampling, **more})
        answer.raise_for_status()
        told: dict[str, Any] = answer.json()
        return told

    def complete(self, prompt: str, max_tokens: int = 32, **more: Any) -> list[int]:
        ids: list[int] = self.generate(prompt, max_tokens, **more)["output_ids"]
        return ids


@contextmanager
def controlled_sglang_server(
    model: Path,
    log: Path,
    algorithm: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[SglangControl]:
    """A real server, and a client that knows its routes."""
    with (
        sglang_server(model, log, algorithm, arguments, environment) as server,
        httpx.Client(base_url=server.url, timeout=300, headers=headers) as client,
    ):
        yield SglangControl(server, client)
