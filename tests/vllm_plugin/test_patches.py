"""The list of what is changed in vLLM: whole, explained, and in force on the installed release."""

import importlib
import sys

import pytest
from specctl_vllm import register
from specctl_vllm.options import OPTIONS_ENV, Options
from specctl_vllm.patches import (
    COMMAND_LINE,
    ENGINE,
    PATCHES,
    RUNNER_V1,
    RUNNER_V2,
    SERVER,
    VERIFIER,
    of_runner,
    of_server,
)

from specctl.engine.patches import PatchConflict, find, install, is_ours

pytest.importorskip("vllm")


@pytest.fixture
def restored(monkeypatch):
    """Whatever a test patches is vLLM's again after it."""
    importlib.import_module("vllm.engine.arg_utils")
    added = []
    for patch in PATCHES:
        module, _, path = patch.target.partition(":")
        *classes, name = path.split(".")
        owner = importlib.import_module(module)
        for one in classes:
            owner = getattr(owner, one)
        if patch.adds:
            added.append((owner, name))
        else:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    yield
    for owner, name in added:
        if name in vars(owner):
            delattr(owner, name)


def test_each_patch_is_explained_and_named_once():
    assert len({patch.target for patch in PATCHES}) == len(PATCHES)
    for patch in PATCHES:
        assert patch.upstream.startswith(("https://github.com/vllm-project/vllm/", "none: "))
        assert patch.why.endswith(".")
        assert patch.until


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("group", [COMMAND_LINE, SERVER, ENGINE, RUNNER_V1, (*RUNNER_V2, *VERIFIER)])
def test_a_group_is_put_in_force_once(restored, monkeypatch, group):
    monkeypatch.delenv(OPTIONS_ENV, raising=False)
    assert install(group) == [patch.target for patch in group]
    assert all(is_ours(find(patch)) for patch in group)
    assert install(group) == []


def test_a_server_names_those_of_its_runner():
    ours = Options(method="specctl_suffix")
    assert of_runner(False, Options(method="specctl_hybrid")) == RUNNER_V1
    beside = set(RUNNER_V1) - set(of_runner(False, ours))
    assert {patch.entry for patch in beside} == {
        "GPUModelRunner.initialize_kv_cache",
        "SpecDecodeBaseProposer.propose",
    }
    assert set(of_server(True, ours)) - set(of_server(True, Options(method="ngram"))) == set(VERIFIER)
    assert len(of_server(False, None)) == len(COMMAND_LINE) + len(SERVER) + len(ENGINE) + len(RUNNER_V1)


def test_another_plugin_in_the_place_of_vllms_reader_leaves_vllm_alone(restored, monkeypatch, caplog):
    from vllm.engine.arg_utils import EngineArgs

    def theirs(self, *args):
        return None

    theirs.__module__ = "other_plugin.patch"
    monkeypatch.setattr(EngineArgs, "create_speculative_config", theirs)
    monkeypatch.delenv(OPTIONS_ENV, raising=False)
    assert "vllm.engine.arg_utils" in sys.modules
    register.register()
    assert EngineArgs.create_speculative_config is theirs
    assert "has been replaced by other_plugin.patch" in caplog.text


def test_nothing_is_in_force_where_another_plugin_has_one_of_a_group(restored, monkeypatch):
    from vllm.config.scheduler import SchedulerConfig

    def theirs(self):
        return None

    theirs.__module__ = "other_plugin.patch"
    monkeypatch.setattr(SchedulerConfig, "get_scheduler_cls", theirs)
    with pytest.raises(PatchConflict, match="get_scheduler_cls has been replaced by other_plugin"):
        install(ENGINE)
    assert not is_ours(find(SERVER[0]))
