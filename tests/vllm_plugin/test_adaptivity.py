"""vLLM's adaptive verification, as the capabilities and the telemetry tell it."""

import importlib.util

import pytest
from specctl_vllm.control.adaptivity import adaptivity_of
from support.vllm_steps import Engine


def test_a_server_that_adapts(monkeypatch):
    engine = Engine(monkeypatch, False, method="dflash", engine_method="dflash", is_v2=True, adapts=True)
    feature = engine.steering.capabilities.adaptivity
    assert (feature.name, feature.decides, feature.is_bounded) == (
        "enable_adaptive_verification",
        "verified",
        True,
    )
    assert engine.steering.telemetry().adaptivity.is_on
    engine.scheduler.vllm_config.speculative_config.enable_adaptive_verification = False
    assert not engine.steering.telemetry().adaptivity.is_on


def test_a_method_that_is_not_steered_is_not_bounded(monkeypatch):
    engine = Engine(monkeypatch, False, method="dspark", engine_method="dspark", adapts=True)
    assert not engine.steering.capabilities.adaptivity.is_bounded


def test_a_server_that_does_not(monkeypatch):
    engine = Engine(monkeypatch, False, method="ngram", engine_method="ngram")
    assert engine.steering.capabilities.adaptivity is None
    assert engine.steering.telemetry().adaptivity is None


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
@pytest.mark.parametrize("asked", [True, False])
def test_vllms_own_config(asked):
    from vllm.config.speculative import SpeculativeConfig

    config = SpeculativeConfig(
        method="ngram", num_speculative_tokens=3, prompt_lookup_max=2, enable_adaptive_verification=asked
    )
    assert (adaptivity_of(config, is_steered=True) is not None) is asked
