"""Modules of ours imported beside an engine of which only names are there."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from itertools import accumulate
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

__all__ = ["STATES", "Configuration", "imported_alone", "sglang_of_states", "with_names_alone"]

STATES = tuple(f"specctl_sglang.compat.{name}" for name in ("first_use", "runtime_states", "eagle_states"))
"""Of ours, what all states of SGLang's workers are made with."""


class _Empty(ModuleType):
    """Stands in for an engine's module."""


def with_names_alone(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[ModuleType]:
    """Empty modules of these names, in the packages that they say."""
    for name in names:
        for part in accumulate(name.split("."), "{}.{}".format):
            if part == name or not isinstance(sys.modules.get(part), _Empty):
                monkeypatch.setitem(sys.modules, part, _Empty(part))
    return [sys.modules[name] for name in names]


def imported_alone(monkeypatch: pytest.MonkeyPatch, *ours: str) -> list[ModuleType]:
    """Imported anew, and not found by any other test."""
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
    modules = [importlib.import_module(name) for name in ours]
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    return modules


class Configuration(SimpleNamespace):
    """SGLang's, as far as it is relied on."""

    def override(self, _source: str, **values: Any) -> None:
        vars(self).update(values)

    def config_leaf(self, name: str) -> Any:
        return getattr(self, name)


def sglang_of_states(monkeypatch: pytest.MonkeyPatch, configuration: Any = None) -> SimpleNamespace:
    """What ``STATES`` imports, by the last part of the module's name; a runner tells how it is captured."""
    modules = with_names_alone(
        monkeypatch,
        "sglang.kernels.ops.attention.clamp_position",
        "sglang.srt.layers.moe.utils",
        "sglang.srt.mem_cache.allocation_sizing",
        "sglang.srt.model_executor.model_runner_components.cuda_graph_setup",
        "sglang.srt.runtime_context",
        "sglang.srt.speculative.spec_info",
        "sglang.srt.utils.common",
    )
    found = SimpleNamespace(**{module.__name__.rpartition(".")[2]: module for module in modules})
    found.clamped = []
    found.clamp_position.clamp_position = found.clamped.append
    found.utils.speculative_moe_backend_context = nullcontext
    found.utils.speculative_moe_a2a_backend_context = nullcontext
    found.allocation_sizing.get_alloc_len_per_decode = None
    found.cuda_graph_setup.capture_decode_graph = lambda model_runner: model_runner.capture()
    found.runtime_context.get_context = lambda: configuration
    found.spec_info.SpeculativeAlgorithm = SimpleNamespace(NONE="none")
    found.common.async_d2h = lambda made: f"copy of {made}"
    return found
