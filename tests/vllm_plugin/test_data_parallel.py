"""Which servers keep their batch table under data parallelism; vLLM's config is stood in for."""

from types import SimpleNamespace

import pytest
from specctl_vllm.compat import data_parallel
from specctl_vllm.options import OPTIONS_ENV, Options
from specctl_vllm.patches import ENGINE
from support.stand_ins import with_names_alone


@pytest.fixture
def config_class(monkeypatch):
    class VllmConfig:
        def __init__(self, model_config):
            self.model_config = model_config
            self.use_v2_model_runner = True
            self.has_table = True

        def _maybe_disable_dynamic_sd_for_data_parallel(self):
            self.has_table = False

    (config,) = with_names_alone(monkeypatch, "vllm.config.vllm")
    config.VllmConfig = VllmConfig
    [patch] = [patch for patch in ENGINE if patch.entry.endswith("_dynamic_sd_for_data_parallel")]
    original = VllmConfig._maybe_disable_dynamic_sd_for_data_parallel
    VllmConfig._maybe_disable_dynamic_sd_for_data_parallel = patch.wrap(original)
    return VllmConfig


@pytest.mark.parametrize(
    ("model", "is_asked", "keeps"),
    [
        pytest.param(SimpleNamespace(is_moe=False), True, True, id="dense"),
        pytest.param(SimpleNamespace(is_moe=True), True, True, id="mixture of experts"),
        pytest.param(SimpleNamespace(is_moe=False), False, False, id="without specctl"),
        pytest.param(None, True, False, id="no model"),
    ],
)
def test_who_keeps_its_batch_table(config_class, monkeypatch, model, is_asked, keeps):
    monkeypatch.delenv(OPTIONS_ENV, raising=False)
    if is_asked:
        monkeypatch.setenv(OPTIONS_ENV, Options(method="ngram").model_dump_json())
    config = config_class(model)
    config._maybe_disable_dynamic_sd_for_data_parallel()
    assert config.has_table is keeps


def test_experts_on_the_v1_runner_have_no_use_for_it(config_class, monkeypatch):
    monkeypatch.setenv(OPTIONS_ENV, Options(method="ngram").model_dump_json())
    config = config_class(SimpleNamespace(is_moe=True))
    config.use_v2_model_runner = False
    config._maybe_disable_dynamic_sd_for_data_parallel()
    assert not config.has_table


def test_a_call_reaches_the_rank_that_is_named():
    """A server of several nodes may begin with another rank than 0."""

    class Client:
        core_engines = (b"\x02\x00", b"\x03\x00")
        engine_ranks_managed = (2, 3)

        async def _call_utility_async(self, *args, engine):
            return f"{args} of {engine!r}"

    client = SimpleNamespace(engine_core=Client())
    assert data_parallel.ranks_of(client) == [2, 3]
    call = data_parallel.call_rank(client, 3, "table", "")
    with pytest.raises(StopIteration) as answer:
        call.send(None)
    assert answer.value.value == "('specctl_call', 'table', '') of b'\\x03\\x00'"
