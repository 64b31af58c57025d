"""Which of SGLang's own workers get a table, and why others do not."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

MODULES = (
    "sglang",
    "sglang.srt",
    "sglang.srt.plugins",
    "sglang.srt.plugins.hook_registry",
    "sglang.srt.runtime_context",
    "sglang.srt.speculative",
    "sglang.srt.speculative.spec_info",
)
NAME = "specctl_sglang.compat.algorithms"


@pytest.fixture
def algorithms(monkeypatch):
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    hooks = sys.modules["sglang.srt.plugins.hook_registry"]
    hooks.HookRegistry = hooks.HookType = SimpleNamespace
    sys.modules["sglang.srt.speculative.spec_info"].SpeculativeAlgorithm = SimpleNamespace(NGRAM="ngram")
    context = sys.modules["sglang.srt.runtime_context"]
    modes = SimpleNamespace(
        pp_size=1,
        enable_dp_attention=False,
        enable_pdmux=False,
        overlap=SimpleNamespace(enable_two_batch_overlap=False),
    )
    context.get_parallel = context.get_exec = context.get_disagg = lambda: modes
    module = importlib.import_module(NAME)
    monkeypatch.delitem(sys.modules, NAME)
    return SimpleNamespace(module=module, modes=modes)


@pytest.mark.parametrize("worker", ["EAGLEWorkerV2", "StandaloneWorkerV2", "DFlashWorkerV2"])
def test_workers_of_which_a_state_can_be_swapped(algorithms, worker):
    assert algorithms.module.why_as_stock(worker) is None


@pytest.mark.parametrize("worker", ["MultiLayerEagleWorkerV2", "FrozenKVMTPWorkerV2", "DSparkWorkerV2"])
def test_others_stay_as_they_are(algorithms, worker):
    assert worker in algorithms.module.why_as_stock(worker)
    stock = type(worker, (), {})
    made = algorithms.module._steered_worker(lambda *_: stock, "other", None)
    assert made is stock


@pytest.mark.parametrize(
    ("mode", "value", "words"),
    [
        ("pp_size", 2, "pipeline parallelism"),
        ("enable_dp_attention", True, "data-parallel attention"),
        ("enable_pdmux", True, "pdmux"),
        ("overlap", SimpleNamespace(enable_two_batch_overlap=True), "two-batch overlap"),
    ],
)
def test_modes_that_a_state_of_ones_own_does_not_go_with(algorithms, mode, value, words):
    setattr(algorithms.modes, mode, value)
    assert words in algorithms.module.why_as_stock("EAGLEWorkerV2")
