"""What an engine needs for one table value: attention backends and, on a GPU, graphs. One state for each
prepared value, built at start and swapped whole, as SGLang's own adaptive EAGLE does."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from sglang.srt.model_executor.model_runner_components.cuda_graph_setup import capture_decode_graph
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from specctl_sglang.compat.first_use import compile_plain_decode
from specctl_sglang.terms import width_of

__all__ = ["RuntimeStates", "TargetStates", "as_if", "as_if_configured", "capture_target"]

logger = logging.getLogger("sglang.specctl")

Key = TypeVar("Key", int, tuple[int, int, int])


@dataclass(frozen=True)
class _State:
    parts: tuple[Any, ...]
    graph_bytes: int


class RuntimeStates(ABC, Generic[Key]):
    """By what a table names."""

    def __init__(self, places: Sequence[tuple[Any, str]], full: Key) -> None:
        """After SGLang has built its own state, which is that of ``full``; places: objects and the names of
        their attributes that make up a state."""
        self._places = tuple(places)
        self._states: dict[Key, _State] = {full: _State(self._read(), 0)}
        self._active: Key = full

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(sorted(self._states))

    def __contains__(self, key: Key) -> bool:
        return key in self._states

    @abstractmethod
    def _build(self, key: Key) -> None:
        """Leaves the parts of a state in their places."""

    def prepare(self, keys: Iterable[Key]) -> None:
        """The largest first; what memory does not hold is left out, and said."""
        for key in sorted(set(keys) - set(self._states), reverse=True):
            kept, before = self._read(), _device_bytes()
            try:
                self._build(key)
                self._states[key] = _State(self._read(), max(_device_bytes() - before, 0))
            except torch.OutOfMemoryError as error:
                logger.warning(
                    "specctl: no memory for %s, which a table may not name: %s", _words(key), error
                )
            finally:
                self._write(kept)
        self._log_bytes()

    def keep(self, keys: Iterable[Key]) -> None:
        """Only these: what every rank of a tensor-parallel group could prepare."""
        self._states = {key: self._states[key] for key in keys}

    def activate(self, key: Key) -> None:
        """Of the prepared ones, before the batch's forward pass is begun."""
        if key == self._active:
            return
        left = self._states.get(self._active)
        if left is not None:
            # An engine may have made a part larger since.
            self._states[self._active] = replace(left, parts=self._read())
        self._write(self._states[key].parts)
        self._active = key

    def _read(self) -> tuple[Any, ...]:
        return tuple(getattr(thing, name) for thing, name in self._places)

    def _write(self, parts: tuple[Any, ...]) -> None:
        for (thing, name), part in zip(self._places, parts, strict=True):
            setattr(thing, name, part)

    def _log_bytes(self) -> None:
        sizes = [f"{_words(key)}: {self._states[key].graph_bytes / 2**20:.0f} MiB" for key in self.keys]
        logger.info("specctl: prepared, with the memory of their graphs: %s", ", ".join(sizes))

    def stats(self) -> dict[str, float]:
        """Bytes of all beside the server's own, and of each that has some."""
        each = {_name(key): state.graph_bytes for key, state in self._states.items() if state.graph_bytes}
        total = {"graph_bytes": float(sum(each.values()))}
        return total | {f"graph_bytes_{name}": float(number) for name, number in each.items()}


class TargetStates(RuntimeStates[int]):
    """Of a worker without a draft model, by the nodes of its drafts; 0 is the target's own decode, with
    graphs as without speculation."""

    def __init__(self, model_runner: Any, full: int) -> None:
        self._model_runner = model_runner
        # decode_cuda_graph_runner is None where nothing was captured: on a CPU, or with graphs disabled.
        super().__init__([(model_runner, "attn_backend"), (model_runner, "decode_cuda_graph_runner")], full)

    def _build(self, number: int) -> None:
        with as_if_configured(speculative_num_draft_tokens=width_of(number)):
            capture_target(self._model_runner, is_plain=number == 0)


def capture_target(runner: Any, is_plain: bool) -> None:
    """A new attention backend and, where graphs are captured, those of a verification, or of a plain decode.

    A server without speculation captures its decode: which it is is asked of the runner.
    """
    kept = runner.spec_algorithm, runner.init_new_workspace
    if is_plain:
        runner.spec_algorithm = SpeculativeAlgorithm.NONE
        compile_plain_decode(runner.device)
    try:
        runner.attn_backend = runner._get_attention_backend(init_new_workspace=True)
        runner.decode_cuda_graph_runner = capture_decode_graph(model_runner=runner).runner
    finally:
        runner.spec_algorithm, runner.init_new_workspace = kept


@contextmanager
def as_if(thing: Any, **values: Any) -> Iterator[None]:
    """Attributes of an object or of a module have other values; what was there before is put back."""
    kept = {name: getattr(thing, name) for name in values}
    for name, value in values.items():
        setattr(thing, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(thing, name, value)


@contextmanager
def as_if_configured(**values: Any) -> Iterator[None]:
    """Backends and graphs take their shape from the server's configuration while they are made."""
    kept = {name: get_context().config_leaf(name) for name in values}
    get_context().override("specctl.capture", **values)
    try:
        yield
    finally:
        get_context().override("specctl.captured", **kept)


def _name(key: Any) -> str:
    return str(key) if isinstance(key, int) else "_".join(map(str, key[:1] if key[1] == 1 else key))


def _words(key: Any) -> str:
    if isinstance(key, int) or key[1] == 1:
        return f"{key if isinstance(key, int) else key[0]} drafts"
    return f"trees {key[0]} deep with {key[1]} branches and {key[2]} positions"


def _device_bytes() -> int:
    """In use on the device, whoever uses it; 0 without one."""
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free
