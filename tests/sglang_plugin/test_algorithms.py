"""Which of SGLang's own workers get a table, and why others do not."""

from types import SimpleNamespace

import pytest
from support.stand_ins import imported_alone, with_names_alone


@pytest.fixture
def algorithms(monkeypatch):
    environ, context, info = with_names_alone(
        monkeypatch,
        "sglang.srt.environ",
        "sglang.srt.runtime_context",
        "sglang.srt.speculative.spec_info",
    )
    info.SpeculativeAlgorithm = SimpleNamespace(NGRAM="ngram")
    environ.envs = SimpleNamespace()
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
    return SimpleNamespace(module=module, modes=modes, environment=environ.envs)


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


def test_ranks_of_data_parallel_attention_share_a_table_where_they_agree_before_each_step(algorithms):
    algorithms.modes.enable_dp_attention = True
    why_as_stock = algorithms.module.why_as_stock
    assert why_as_stock("EAGLEWorkerV2") is None
    assert "data-parallel attention" in why_as_stock("DFlashWorkerV2")
    algorithms.environment.SGLANG_SCHEDULER_SKIP_ALL_GATHER = SimpleNamespace(get=lambda: True)
    assert "data-parallel attention" in why_as_stock("EAGLEWorkerV2")
