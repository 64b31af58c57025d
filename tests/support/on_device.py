"""Tests of real servers on a GPU; with SPECCTL_GPU_TESTS=cpu they are tried on this machine's CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from support.engine_control import Control

from specctl.engine.guard import FAILURES_MAX

__all__ = [
    "ON_CPU",
    "PROMPTS",
    "Servers",
    "assert_failures_cost_drafts_only",
    "assert_our_kernels_verify",
    "assert_table_is_obeyed",
    "failing_environment",
    "need_gpus",
    "steps_with",
]

ON_CPU = os.environ.get("SPECCTL_GPU_TESTS") == "cpu"
FAILING = Path(__file__).parent / "failing"
PROMPTS = [
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    '{"name": "x", "value": 1}\n{"name": "y", "value": 2}\n{"name":',
]
Counted = Callable[[Control, int], int]


def need_gpus(number: int = 1) -> None:
    """Skips the test where there are fewer."""
    if ON_CPU and number == 1:
        return
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < number:
        pytest.skip(f"{torch.cuda.device_count()} GPUs, expected {number}")


class Servers:
    """By name, started at the same time (on a CPU each when it is asked for, and stopped for the next). One
    that does not start fails the tests that ask for it, and no other."""

    def __init__(self, names: Iterable[str], start: Callable[[str], AbstractContextManager[Control]]) -> None:
        self._start = start
        self._names = list(names)
        self._stack = ExitStack()
        self._found: dict[str, Control | Exception] = {}

    def __enter__(self) -> Servers:
        if not ON_CPU:
            with ThreadPoolExecutor(len(self._names)) as pool:
                self._found = dict(zip(self._names, pool.map(self._started, self._names), strict=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Control:
        if ON_CPU and name not in self._found:
            self._stack.close()
            self._found = {name: self._started(name)}
        found = self._found[name]
        if isinstance(found, Exception):
            raise found
        return found

    def _started(self, name: str) -> Control | Exception:
        try:
            return self._stack.enter_context(self._start(name))
        except Exception as error:
            return error


def steps_with(control: Control, number: int) -> int:
    """Request-steps so far with this number of drafts."""
    cells = control.get("telemetry")["cells"]
    return sum(cell["request_steps"] for cell in cells if cell["num_speculative_tokens"] == number)


def assert_table_is_obeyed(control: Control, most: int, drafted: Callable[[Control], float]) -> None:
    """At every number there are steps with it, drafts where it is not 0, and the tokens of 0 drafts."""
    capabilities = control.get("capabilities")
    assert capabilities["controllable"], capabilities
    assert control.put(control.change(0)).status_code == 200
    reference = [control.complete(prompt) for prompt in PROMPTS]
    for number in (most, 2, 0, most):
        assert control.put(control.change(number)).status_code == 200
        before, drafts = steps_with(control, number), drafted(control)
        assert [control.complete(prompt) for prompt in PROMPTS] == reference
        assert steps_with(control, number) > before
        assert (drafted(control) > drafts) == (number > 0)


def assert_our_kernels_verify(control: Control) -> None:
    """The batches of drafts since the last start of the server: 3 of vLLM's own warm-up have a logit bias."""
    word, found = "batches_verified_by_", control.get("telemetry")["proposer"]
    batches = {name.removeprefix(word): n for name, n in found.items() if name.startswith(word)}
    assert batches.pop("specctl") > 0, found
    assert batches.pop("engine_logit_bias", 0) <= 3, found
    assert batches == {}, found


def failing_environment(file: Path) -> dict[str, str]:
    """Of a server whose entry of ours fails that the file names."""
    file.write_text("", encoding="utf-8")
    paths = [str(FAILING), os.environ.get("PYTHONPATH", "")]
    return {"SPECCTL_FAIL": str(file), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def assert_failures_cost_drafts_only(control: Control, file: Path, entry: str) -> None:
    """The entry raises a few times under load: every output stays, then nothing is drafted."""
    expected = [control.complete(prompt) for prompt in PROMPTS]
    assert control.get("telemetry")["failures"] == {}
    file.write_text(f"{entry} {FAILURES_MAX} keep", encoding="utf-8")
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert list(pool.map(control.complete, PROMPTS)) == expected
    assert control.get("telemetry")["failures"] == {entry: FAILURES_MAX}
    assert [control.complete(prompt) for prompt in PROMPTS] == expected
    assert control.get("telemetry")["num_speculative_tokens"] == 0
