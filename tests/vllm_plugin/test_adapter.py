"""What the plugin relies on inside vLLM: of the installed one, and of each release in the table."""

import ast
import importlib.util

import pytest
from specctl_vllm.adapter import ADAPTER
from support.engine_sources import guarded, importers, sources_or_skip

from specctl.engine.engine_check import problems_of, relied_on
from specctl.engine.engine_source import Sources
from specctl.engine.releases import TESTED


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
def test_the_installed_vllm_is_as_expected():
    assert problems_of(ADAPTER) == []


# The oldest is the one that tests run.
@pytest.mark.parametrize("release", TESTED["vllm"][1:])
def test_a_release_of_the_table_is_as_expected(release):
    root = sources_or_skip("vllm", release)
    assert problems_of(ADAPTER, root) == []
    sources = Sources("vllm", root)
    unknown = [one for named in ADAPTER.objects.values() for one in named if sources.find(one) is None]
    assert [one for one in unknown if not one.startswith("specctl_")] == []


def test_another_vllm_has_many_problems(tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    problems = problems_of(ADAPTER, tmp_path)
    assert len(problems) > 50
    targets = {patch.target for patch in ADAPTER.patches if not patch.adds}
    assert {f"{target} not found" for target in targets} <= {one.words for one in problems}


def test_every_patch_and_override_is_compared():
    found = relied_on(ADAPTER, sources_or_skip("vllm", TESTED["vllm"][-1]))
    assert {patch.target for patch in ADAPTER.patches if not patch.adds} <= set(found)
    assert "vllm.v1.core.sched.scheduler:Scheduler.update_from_output" in found


def test_only_compat_imports_vllm():
    assert {name.partition("/")[0] for name in importers(ADAPTER)} == {"compat"}


def test_nothing_of_vllms_is_assigned_to_outside_the_list():
    """Names that a file imports from vLLM: their attributes are set by patches alone."""
    found = set()
    for path in ADAPTER.folder.rglob("*.py"):
        tree = ast.parse(path.read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        bound = {
            alias.asname or alias.name
            for node in imports
            if (node.module or "").partition(".")[0] == "vllm"
            for alias in node.names
        }
        stored = (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        )
        found |= {ast.unparse(node) for node in stored if ast.unparse(node).partition(".")[0] in bound}
    assert found == set()


def test_whatever_runs_under_the_guard_is_named_by_a_patch():
    """So that a test raises in it on a real server."""
    assert guarded(ADAPTER) == {entry for patch in ADAPTER.patches for entry in patch.entries}
