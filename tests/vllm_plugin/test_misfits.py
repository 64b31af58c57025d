"""A vLLM that the plugin does not fit: stock methods go on as stock, ours are refused."""

import os
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from specctl_vllm.compat import engine_args
from specctl_vllm.options import OPTIONS_ENV

from specctl.engine.engine_check import Problem
from specctl.engine.patches import PatchConflict
from specctl.engine.releases import ALLOW_ENV

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "specctl": {}}
OURS = {"method": "specctl_suffix"}
RENAMED = Problem("vllm.v1.x:A.propose: called with mark=, which ours does not take")
MISSING = Problem("vllm.v1.x:A not found")
OF_ANOTHER = Problem("vllm.v1.x:B not found", frozenset({"specctl_peagle"}))


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.setenv(OPTIONS_ENV, "")
    monkeypatch.delenv(ALLOW_ENV, raising=False)
    for name in ("check_conflicts", "install"):
        monkeypatch.setattr(engine_args, name, lambda *_: None)
    monkeypatch.setattr(engine_args, "problems_of", lambda _: [])


def read(asked):
    """The config that vLLM's own function gets."""
    seen = []
    arguments = SimpleNamespace(
        speculative_config=asked,
        spec_method=None,
        spec_model=None,
        spec_tokens=None,
        pipeline_parallel_size=1,
    )
    wrapped = engine_args.wrap_create_speculative_config(lambda self, _: seen.append(self.speculative_config))
    wrapped(arguments, None)
    return seen[0]


def is_stock(caplog, words):
    config = read(NGRAM)
    lines = [one.message for one in caplog.records if "The server runs without specctl." in one.message]
    return config == {"method": "ngram", "num_speculative_tokens": 4} and [words in one for one in lines] == [
        True
    ]


@pytest.mark.parametrize("version", ["0.34.0", "0.31.0", "0.34.0.dev20261120+g1a2b3c", "0.33.1rc1"])
def test_a_release_that_is_not_in_the_table(monkeypatch, caplog, version):
    monkeypatch.setattr(engine_args, "engine_version", lambda: version)
    assert is_stock(caplog, f"{version} was not tested")
    assert OPTIONS_ENV not in os.environ
    with pytest.raises(ValueError, match=r"specctl_suffix cannot run: .* was not tested"):
        read(OURS)
    read({**NGRAM, "specctl": {"untested_engine": "allow"}})
    assert os.environ[OPTIONS_ENV]
    monkeypatch.setenv(ALLOW_ENV, "allow")
    read(OURS)


@pytest.mark.parametrize("problem", [RENAMED, MISSING], ids=["renamed argument", "missing class"])
def test_a_vllm_that_is_not_as_expected(monkeypatch, caplog, problem):
    monkeypatch.setattr(engine_args, "problems_of", lambda _: [problem])
    assert is_stock(caplog, problem.words)
    with pytest.raises(ValueError, match="does not fit this vLLM"):
        read(OURS)


def test_what_another_method_lacks_is_no_matter(monkeypatch):
    monkeypatch.setattr(engine_args, "problems_of", lambda _: [OF_ANOTHER])
    assert "specctl" not in read(NGRAM)
    assert read(OURS)["method"] == "custom_class"
    assert os.environ[OPTIONS_ENV]


def test_a_function_that_another_plugin_has_replaced(monkeypatch, caplog):
    def conflict(_):
        raise PatchConflict("x:A.f has been replaced by other")

    monkeypatch.setattr(engine_args, "check_conflicts", conflict)
    assert is_stock(caplog, "x:A.f has been replaced by other")
    with pytest.raises(ValueError, match=r"x:A\.f has been replaced by other"):
        read(OURS)
