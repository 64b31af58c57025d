"""The control routes and the completions of one real SGLang server, for tests."""

import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.engine_control import LISTING, PROMPTS, Control

from testing.forked import forked_module
from testing.servers import FORKS_ENV, KEEP_BYTECODE, SGLANG_PYTHON, end_of, sglang_server

__all__ = [
    "LISTING",
    "NEEDS_SGLANG",
    "PROMPTS",
    "SglangControl",
    "assert_grammars_hold_with_drafts",
    "assert_sampled_guarded",
    "cells_by_number",
    "controlled_sglang_server",
    "greedy_while_changing",
    "ran_by_sglang",
    "rows",
    "steps_by_number",
]

_SCRIPT_TIMEOUT_S = 1500.0
NEEDS_SGLANG = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not SGLANG_PYTHON.is_file(),
        reason="SGLang's environment is not there; make setup-sglang makes it, or set SPECCTL_SGLANG_PYTHON",
    ),
]


def rows(
    tokens: int, topk: int = 1, width: int | None = None, sample: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    setting = {"num_speculative_tokens": tokens, "tree_topk": topk, "verify_width_tokens": width}
    return [{"decode_batch_from": 1, **setting, "sample": sample}]


def ran_by_sglang(
    script: str, work: Mapping[str, Any], out: Path, *, is_copy: bool = False, **environment: str
) -> Any:
    """What a script of this folder writes to ``out`` of its work, run by SGLang's Python.

    is_copy: in a copy of a process that has imported SGLang, as servers are where they may be.
    """
    here, argument = Path(__file__).parent, json.dumps({**work, "out": str(out)})
    full = {**os.environ, **KEEP_BYTECODE, "PYTHONPATH": str(here.parent), **environment}
    if is_copy and full.get(FORKS_ENV):
        log = out.with_suffix(".log")
        with log.open("wb") as output:
            module = f"{here.name}.{Path(script).stem}"
            copy = forked_module(str(SGLANG_PYTHON), module, [argument], full, output)
        try:
            assert copy.wait(_SCRIPT_TIMEOUT_S) == 0, end_of(log)
        finally:
            copy.kill()
    else:
        command = [str(SGLANG_PYTHON), str(here / script), argument]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SCRIPT_TIMEOUT_S, env=full)
        assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def cells_by_number(control: Control) -> dict[int, list[dict[str, Any]]]:
    """Without that of prompts alone."""
    found: dict[int, list[dict[str, Any]]] = {}
    for cell in control.get("telemetry")["cells"]:
        if not cell["decode_batch_to"]:
            continue
        found.setdefault(cell["num_speculative_tokens"], []).append(cell)
    return found


def steps_by_number(control: Control) -> dict[int, int]:
    """So far, without those of prompts alone."""
    cells = cells_by_number(control)
    return {number: sum(cell["steps"] for cell in found) for number, found in cells.items()}


class SglangControl(Control):
    """Completions by SGLang's own route, which tells the ids of the tokens."""

    def generate(self, prompt: str, max_tokens: int = 32, **more: Any) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
        sampling |= more.pop("sampling", {})
        answer = self.client.post("/generate", json={"text": prompt, "sampling_params": sampling, **more})
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result

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
    **more: Any,
) -> Iterator[SglangControl]:
    """A real server, and a client that knows its routes."""
    with (
        sglang_server(model, log, algorithm, arguments, environment, **more) as server,
        httpx.Client(base_url=server.url, timeout=300, headers=headers) as client,
    ):
        yield SglangControl(server, client)


def greedy_while_changing(
    control: SglangControl, concurrency: int, settings: Iterable[tuple[Any, ...]], rounds: int = 3
) -> list[list[int]]:
    """The outputs of ``PROMPTS``, ``rounds`` times over, while one setting (depth, branches, positions,
    sample) follows the other. At least five do."""
    tables = 0
    with ThreadPoolExecutor(concurrency) as pool:
        running = [pool.submit(control.complete, prompt) for prompt in PROMPTS * rounds]
        for setting in settings:
            if all(one.done() for one in running):
                break
            assert control.put(control.change(0, rows=rows(*setting))).status_code == 200
            tables += 1
            time.sleep(0.02)
        outputs = [one.result() for one in running]
    assert tables >= 5
    return outputs


def assert_sampled_guarded(control: SglangControl, drafts: int) -> None:
    """On a CPU nothing is drafted for sampled requests, whatever the table says."""
    assert control.put(control.change(drafts)).status_code == 200
    before = control.get("telemetry")["guarded_steps"]
    sampled = {"temperature": 0.8, "top_k": 20}
    outputs = {tuple(control.complete(PROMPTS[1], 16, sampling=sampled)) for _ in range(3)}
    assert len(outputs) > 1
    assert control.get("telemetry")["guarded_steps"] >= before + 40


def assert_grammars_hold_with_drafts(control: SglangControl, settings: Iterable[tuple[Any, ...]]) -> None:
    """Answers under a JSON schema are those without drafts, alone and beside requests without a grammar."""
    asked = {"ignore_eos": False, "json_schema": json.dumps(_SCHEMA)}
    assert control.put(control.change(0)).status_code == 200
    answers = [control.generate(prompt, _TOKENS, sampling=asked) for prompt in PROMPTS]
    without, free = [one["output_ids"] for one in answers], [control.complete(prompt) for prompt in PROMPTS]
    for one in answers:
        assert one["meta_info"]["finish_reason"]["type"] == "stop"
        assert json.loads(one["text"]).keys() == _SCHEMA["properties"].keys()
    for setting in settings:
        assert control.put(control.change(0, rows=rows(*setting))).status_code == 200
        again = [control.generate(prompt, _TOKENS, sampling=asked) for prompt in PROMPTS]
        assert [one["output_ids"] for one in again] == without, setting
        steps = [one["meta_info"]["spec_verify_ct"] for one in again]
        assert sum(steps) < 0.9 * sum(map(len, without)), "drafts are accepted"
        with ThreadPoolExecutor(8) as pool:
            others = pool.map(control.complete, PROMPTS)
            mixed = list(pool.map(lambda prompt: control.complete(prompt, _TOKENS, sampling=asked), PROMPTS))
            assert (mixed, list(others)) == (without, free), setting


_TOKENS = 160
"""Enough for every answer of the schema, where the server leaves white space out of it."""
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["load", "retries", "capital"]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 6},
        "text": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["read", "write", "read and write"]},
    },
    "required": ["name", "flags", "text", "kind"],
    "additionalProperties": False,
}
