"""What one verification by our kernels asks of the host, on both engines' edges, counted on a CPU.

No engine, no device: batches by their attributes through the whole function that the plugin puts in the
engine's place. Triton compiles and launches nothing; all it does on the host before a launch is done.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

ROWS = 9
KINDS: dict[str, dict[str, float]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
}
_COLUMNS = 8192
_NO_DEVICE = 10_001
"""Whatever Triton keeps under this number no device finds."""
_WAITS = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "lift_fresh")
_ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "scalar_tensor")


@dataclass
class HostCalls:
    """Of the calls made so far, by name: Triton kernels; torch operations that are kernels or copies on a
    device; those on the host alone; and where the host would wait for a device's value."""

    launches: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    allocations: Counter[str] = field(default_factory=Counter)
    views: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)


class Dispatched(TorchDispatchMode):
    def __init__(self, calls: HostCalls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        results = func._schema.returns
        if name in _WAITS:
            kind = self._calls.waits
        elif name in _ALLOCATIONS:
            kind = self._calls.allocations
        elif any(result.alias_info and not result.alias_info.is_write for result in results):
            kind = self._calls.views
        else:
            kind = self._calls.kernels
        kind[name] += 1
        return func(*args, **(kwargs or {}))


class _Driver:
    """One H200 that is not there."""

    def get_current_device(self) -> int:
        return _NO_DEVICE

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class _Compiled:
    """A kernel that is sent nowhere."""

    function = 0
    packed_metadata = ()

    def launch_metadata(self, *given: Any) -> None:
        pass

    def run(self, *given: Any) -> None:
        pass


@contextmanager
def without_device(calls: HostCalls, *, compiles: bool = False) -> Iterator[None]:
    """Triton's launches stop before the device, and are counted. ``compiles``: as for a device."""
    run = JITFunction.run

    def compiled(
        function: Any,
        key: Any,
        signature: Any,
        device: int,
        constants: Any,
        options: Any,
        attrs: Any,
        *_: Any,
    ) -> _Compiled:
        if compiles:
            source = function.ASTSource(function, signature, constants, attrs)
            function.compile(source, target=_Driver().get_current_target(), options=options.__dict__)
        made = function.device_caches[device][0][key] = _Compiled()
        return made

    def counted(function: Any, *given: Any, **named: Any) -> Any:
        calls.launches[function.__name__] += 1
        return run(function, *given, **named)

    with (
        warnings.catch_warnings(action="ignore"),  # of the options that Triton would compile with
        patch.object(driver, "_active", _Driver()),
        patch.object(JITFunction, "_do_compile", compiled),
        patch.object(JITFunction, "run", counted),
    ):
        yield


@contextmanager
def sglang_call(requests: int, options: dict[str, float]) -> Iterator[Callable[[], Any]]:
    """What the plugin puts in the place of ``eagle_sample``, less what it asks of SGLang's server."""
    from specctl_sglang.compat import verification
    from support.sglang_batches import batch_of, sampling_of, trees

    torch.manual_seed(requests)
    drafts = trees(requests, ROWS, _COLUMNS)
    asked = {name: [value] * requests for name, value in (options or {"top_k": 1}).items()}
    batch = batch_of(sampling_of(requests, **asked))
    output = SimpleNamespace(next_token_logits=torch.zeros(requests * ROWS, _COLUMNS))
    settings = verification.EngineSettings(False, False, False, (1.0, 1.0), ROWS)
    with (
        patch.object(verification, "_engine_settings", lambda: settings),
        patch.object(verification, "_sanitize", lambda logits: None),
        patch.object(verification, "_ranks", lambda: SimpleNamespace(world_size=1)),
    ):
        yield lambda: verification._sampled_by_ours(_refused, drafts, batch, output)


@contextmanager
def vllm_call(requests: int, options: dict[str, float]) -> Iterator[Callable[[], Any]]:
    """What the plugin puts in the place of ``_verify_in_chunks``; nobody asks for logprobs."""
    from specctl_vllm.compat import verification, verified_batches
    from support.vllm_batches import batch, rejection

    asked = {"temperature": 0.0} | options
    slots = {name: [value] * requests for name, value in asked.items()}
    sampler = rejection(drafts=ROWS - 1, columns=_COLUMNS, **slots)
    rows = requests * ROWS
    given = (
        sampler, torch.zeros(rows, _COLUMNS), batch(range(requests), ROWS - 1), None,
        torch.zeros(rows, dtype=torch.int32), torch.zeros(rows, dtype=torch.int64), 1 << 30, -1,
    )  # fmt: skip
    verify = verification.wrap_verify_in_chunks(_refused)
    with (
        patch.object(verification, "scope", verification.Scope(greedy=True, sampled=True)),
        patch.object(verified_batches, "_on_device", None),
        patch.object(verified_batches.batches, "counts", {}),
    ):
        yield lambda: verify(*given)


def _refused(*given: Any) -> Any:
    raise AssertionError("the engine was asked to verify")


ENGINES = {"vllm": vllm_call, "sglang": sglang_call}


def compile_calls(engine: str, kind: str, requests: int) -> HostCalls:
    """What the first call launches, compiled for a device."""
    calls = HostCalls()
    with without_device(calls, compiles=True), ENGINES[engine](requests, KINDS[kind]) as call:
        call()
    return calls


def calls_of(engine: str, kind: str, requests: int) -> HostCalls:
    """Of one call that is not the first."""
    calls = HostCalls()
    with without_device(calls), ENGINES[engine](requests, KINDS[kind]) as call:
        call()
        calls.launches.clear()
        with Dispatched(calls):
            call()
    return calls
