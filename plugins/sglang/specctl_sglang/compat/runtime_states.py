"""What the target needs to verify one width: an attention backend and, on a GPU, its graphs. One for each
prepared number of drafts, built at start and swapped whole, as SGLang's own adaptive EAGLE does."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.model_executor.model_runner_components.cuda_graph_setup import capture_decode_graph
from sglang.srt.runtime_context import get_context, get_spec
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from specctl_sglang.terms import width_of

__all__ = ["RuntimeStates"]

logger = logging.getLogger("sglang.specctl")


@dataclass(frozen=True)
class _State:
    attn_backend: Any
    graph_runner: Any
    """None: nothing was captured, on a CPU or where graphs are disabled."""
    graph_bytes: int


class RuntimeStates:
    """By num_speculative_tokens; 0 is the target's own decode, with graphs as without speculation."""

    def __init__(self, model_runner: Any, full: int) -> None:
        """After SGLang has built its own state, which is that of the full number."""
        self._model_runner = model_runner
        runner = model_runner.decode_cuda_graph_runner
        self._states = {full: _State(model_runner.attn_backend, runner, 0)}
        self._active = full

    @property
    def prepared(self) -> tuple[int, ...]:
        return tuple(sorted(self._states))

    def prepare(self, numbers: Iterable[int]) -> None:
        """The largest first; what memory does not hold is left out, and said."""
        for number in sorted(set(numbers) - set(self._states), reverse=True):
            try:
                self._states[number] = self._build(number)
            except torch.OutOfMemoryError as error:
                logger.warning(
                    "specctl: no memory for the graphs of %d drafts, which a table may not name: %s",
                    number,
                    error,
                )
        self._log_bytes()

    def keep(self, numbers: Iterable[int]) -> None:
        """Only these: what every rank of a tensor-parallel group could prepare."""
        self._states = {number: self._states[number] for number in numbers}

    def activate(self, number: int) -> None:
        """Of the prepared ones, before the batch's forward pass is begun."""
        if number == self._active:
            return
        state = self._states[number]
        self._model_runner.attn_backend = state.attn_backend
        self._model_runner.decode_cuda_graph_runner = state.graph_runner
        self._active = number

    def _build(self, number: int) -> _State:
        runner = self._model_runner
        with self._as_if_started_with(number):
            runner.attn_backend = runner._get_attention_backend(init_new_workspace=True)
            before = _device_bytes()
            capture = capture_decode_graph(model_runner=runner)
            return _State(runner.attn_backend, capture.runner, max(_device_bytes() - before, 0))

    @contextmanager
    def _as_if_started_with(self, number: int) -> Iterator[None]:
        """Backends and graphs take their width from the server's configuration, and a server without
        speculation captures its decode: both are true for the time of one capture."""
        runner = self._model_runner
        kept = runner.attn_backend, runner.decode_cuda_graph_runner, runner.spec_algorithm
        width = get_spec().speculative_num_draft_tokens
        workspace = runner.init_new_workspace
        if number == 0:
            runner.spec_algorithm = SpeculativeAlgorithm.NONE
        get_context().override("specctl.capture", speculative_num_draft_tokens=width_of(number))
        try:
            yield
        finally:
            runner.attn_backend, runner.decode_cuda_graph_runner, runner.spec_algorithm = kept
            runner.init_new_workspace = workspace
            get_context().override("specctl.captured", speculative_num_draft_tokens=width)

    def _log_bytes(self) -> None:
        told = [f"{number}: {state.graph_bytes / 2**20:.0f} MiB" for number, state in self._states.items()]
        logger.info("specctl: prepared numbers of drafts, with their graphs: %s", ", ".join(sorted(told)))

    def stats(self) -> dict[str, float]:
        return {"graph_bytes": float(sum(state.graph_bytes for state in self._states.values()))}


def _device_bytes() -> int:
    """In use on the device, whoever uses it; 0 without one."""
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free
