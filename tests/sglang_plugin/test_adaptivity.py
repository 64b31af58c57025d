"""SGLang's own adaptivity, as the capabilities and the telemetry tell it."""

from enum import Enum
from types import SimpleNamespace

import pytest
from support.stand_ins import imported_alone, with_names_alone

RaggedVerifyMode = Enum("RaggedVerifyMode", "STATIC COMPACT")


@pytest.fixture
def ragged(monkeypatch):
    (module,) = with_names_alone(monkeypatch, "sglang.srt.speculative.ragged_verify")
    module.RaggedVerifyMode = RaggedVerifyMode
    module.read_ragged_verify_mode = lambda: RaggedVerifyMode.STATIC
    return module


@pytest.fixture
def adaptivity(monkeypatch, ragged):
    (module,) = imported_alone(monkeypatch, "specctl_sglang.compat.adaptivity")
    return module


def spec(*, adaptive=False):
    return SimpleNamespace(speculative_adaptive=adaptive)


def test_the_table_takes_the_place_of_the_steps(adaptivity):
    feature = adaptivity.adaptivity_of(spec(adaptive=True), "EAGLE", is_steered=True)
    assert (feature.name, feature.decides, feature.is_replaced) == ("speculative_adaptive", "drafted", True)
    worker = SimpleNamespace(adaptive_controller=None, speculative_num_steps=3)
    assert not adaptivity.adaptivity_state(worker, feature).is_on


def test_a_worker_that_runs_as_stock_decides_by_itself(adaptivity):
    feature = adaptivity.adaptivity_of(spec(adaptive=True), "EAGLE", is_steered=False)
    assert not feature.is_replaced
    worker = SimpleNamespace(adaptive_controller=object(), speculative_num_steps=3)
    state = adaptivity.adaptivity_state(worker, feature)
    assert (state.is_on, state.num_speculative_tokens) == (True, 3)
    worker.adaptive_controller = None
    assert not adaptivity.adaptivity_state(worker, feature).is_on


@pytest.mark.parametrize("mode", RaggedVerifyMode)
def test_dspark_adapts_unless_its_verification_is_static(monkeypatch, ragged, mode):
    ragged.read_ragged_verify_mode = lambda: mode
    (module,) = imported_alone(monkeypatch, "specctl_sglang.compat.adaptivity")
    feature = module.adaptivity_of(spec(), "DSPARK", is_steered=False)
    assert (feature.decides, feature.is_bounded) == ("verified", False)
    assert module.adaptivity_state(None, feature).is_on is (mode is RaggedVerifyMode.COMPACT)


def test_others_adapt_nothing(adaptivity):
    feature = adaptivity.adaptivity_of(spec(), "NGRAM", is_steered=True)
    assert feature is None
    assert adaptivity.adaptivity_state(None, feature) is None
