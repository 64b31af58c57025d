"""The list of what is changed in SGLang: whole, explained, and the only place that changes anything."""

import ast
from pathlib import Path

import pytest
from specctl_sglang import asked, register
from specctl_sglang.options import Options
from specctl_sglang.patches import CPU, PATCHES, of_algorithm

from specctl.engine.engine_check import Problem
from specctl.engine.releases import ALLOW_ENV, TESTED

PLUGIN = Path(register.__file__).parent
# Entries in a table of SGLang's that is made for it.
REGISTRATIONS = {"ModelRegistry.models[ARCHITECTURE]"}


def engine_names(tree):
    """Names in a module that are SGLang's modules or classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang"):
            yield from (alias.asname or alias.name for alias in node.names)


def assigned(tree):
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            yield from (one for one in targets if isinstance(one, ast.Attribute | ast.Subscript))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setattr", "as_if"):
            yield node.args[0]


def root(node):
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return getattr(node, "id", None)


def test_nothing_of_sglangs_is_assigned_to_outside_the_list():
    found = set()
    for path in sorted(PLUGIN.rglob("*.py")):
        tree = ast.parse(path.read_text())
        names = set(engine_names(tree))
        found |= {f"{ast.unparse(node)}" for node in assigned(tree) if root(node) in names}
    assert found == REGISTRATIONS | {
        "http_server.app.state.specctl_why_not",
        "speculative_hook._disable_overlap_schedule_for_cpu",
    }


def test_hooks_are_registered_in_one_place():
    users = [path.name for path in PLUGIN.rglob("*.py") if "HookRegistry.register(" in path.read_text()]
    assert users == ["hooks.py"]


def test_each_patch_is_explained_and_named_once():
    assert len({patch.target for patch in PATCHES}) == len(PATCHES)
    for patch in PATCHES:
        assert patch.upstream.startswith(("https://github.com/sgl-project/sglang/", "none: "))
        assert patch.why.endswith(".")
        assert patch.until


def test_a_class_is_replaced_for_the_algorithm_that_needs_it():
    assert [patch.entry for patch in of_algorithm("SPECCTL_SUFFIX")] == [
        "NgramCorpus",
        "move_accept_tokens_to_target_kvcache",
    ]
    assert [patch.entry for patch in of_algorithm("SPECCTL_PEAGLE")] == ["EagleDraftWorker"]
    assert not any(register._serves(patch, Options()) for patch in of_algorithm("SPECCTL_PEAGLE"))


def test_without_options_stock_algorithms_are_left_alone():
    served = {patch.entry for patch in PATCHES if register._serves(patch, None) and CPU not in patch.methods}
    assert served == {
        "set_global_state",
        "TokenizerManager.auto_create_handle_loop",
        "SamplingParams.verify",
        "ChatCompletionRequest.to_sampling_params",
        "ResponsesRequest.to_sampling_params",
        "Scheduler.__init__",
        "Scheduler.run_batch",
        "Scheduler.process_batch_result",
        "Scheduler.get_internal_state",
        "eagle_sample",
    }


@pytest.mark.parametrize(
    ("words", "may"),
    [
        ("--model-path m --speculative-algorithm SPECCTL_SUFFIX", True),
        ("--model-path m --speculative-algorithm EAGLE3", False),
        ("--model-path m", False),
        ("--config server.yaml", True),
        ("", True),
    ],
)
def test_a_plain_server_does_not_ask(monkeypatch, words, may):
    monkeypatch.setattr("sys.argv", ["sglang", *words.split()])
    assert asked.may_ask(None) == may
    assert asked.may_ask(Options())


@pytest.mark.parametrize("version", ["0.5.20", "0.5.24", "0.5.24.dev3"])
def test_an_sglang_that_was_not_tested_stays_as_it_is(monkeypatch, version):
    monkeypatch.setattr(register, "version", lambda _: version)
    monkeypatch.setattr(register, "problems_of", lambda _: [])
    monkeypatch.setenv(asked.CHECKED_ENV, "")
    assert f"{version} was not tested" in register._why_not(None)
    assert register._why_not(Options(untested_engine="allow")) is None
    monkeypatch.setenv(ALLOW_ENV, "allow")
    assert register._why_not(None) is None


def test_what_some_methods_lack_takes_those_away_and_no_other(monkeypatch, caplog):
    lost = frozenset({"eagle", "eagle3", "nextn", "standalone", "specctl_peagle"})
    monkeypatch.setattr(register, "version", lambda _: TESTED["sglang"][-1])
    monkeypatch.setattr(register, "problems_of", lambda _: [Problem("x.y:A.f not found", lost)])
    monkeypatch.setenv(asked.CHECKED_ENV, "")
    assert register._why_not(Options()) is None
    assert asked.misfits() == lost
    assert (
        "eagle, eagle3, nextn, specctl_peagle, standalone cannot run on this SGLang: x.y:A.f" in caplog.text
    )
    left = {
        patch.entry for patch in PATCHES if register._serves(patch, Options()) and CPU not in patch.methods
    }
    assert not left & {"EagleDraftWorker.draft", "handle_speculative_decoding"}
    assert {"Scheduler.run_batch", "SpeculativeAlgorithm.create_worker"} <= left


def test_what_every_method_needs_takes_all_away(monkeypatch):
    monkeypatch.setattr(register, "version", lambda _: TESTED["sglang"][-1])
    monkeypatch.setattr(register, "problems_of", lambda _: [Problem("x.y:A.f not found")])
    assert register._why_not(Options()) == "it does not fit this SGLang: x.y:A.f not found"
