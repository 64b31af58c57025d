"""Which of SGLang's own workers get a table, and why others do not."""

from types import SimpleNamespace

import pytest
from support.stand_ins import imported_alone, with_names_alone


@pytest.fixture
def algorithms(monkeypatch):
    context, info = with_names_alone(
        monkeypatch,
        "sglang.srt.runtime_context",
        "sglang.srt.speculative.spec_info",
    )
    info.SpeculativeAlgorithm = SimpleNamespace(NGRAM="ngram")
    modes = SimpleNamespace(
        pp_size=1,
        enable_dp_attention=False,
        enable_pdmux=False,
        disaggregation_mode="null",
        enable_lora=None,
        overlap=SimpleNamespace(enable_two_batch_overlap=False),
    )
    context.get_parallel = context.get_exec = context.get_disagg = context.get_lora = lambda: modes
    (module,) = imported_alone(monkeypatch, "specctl_sglang.compat.algorithms")
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
        ("disaggregation_mode", "decode", "prefill/decode disaggregation"),
        ("enable_lora", True, "LoRA"),
        ("overlap", SimpleNamespace(enable_two_batch_overlap=True), "two-batch overlap"),
    ],
)
def test_modes_that_a_state_of_ones_own_does_not_go_with(algorithms, mode, value, words):
    setattr(algorithms.modes, mode, value)
    assert words in algorithms.module.why_as_stock("EAGLEWorkerV2")
    assert words in algorithms.module.why_as_stock("NGRAMWorker")
    stock = type("NGRAMWorker", (), {})
    assert algorithms.module._steered_worker(lambda *_: stock, "ngram", None) is stock
