"""What the plugin relies on inside SGLang: of the installed one, and of each release in the table."""

import os
from pathlib import Path

import pytest
from specctl_sglang.adapter import ADAPTER
from support.engine_sources import guarded, importers, sources_or_skip

from specctl.engine.engine_check import problems_of, relied_on
from specctl.engine.engine_source import Sources
from specctl.engine.releases import TESTED

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SPECCTL_SGLANG_PYTHON", ROOT / ".venv-sglang" / "bin" / "python"))


def test_the_installed_sglang_is_as_expected():
    found = sorted(PYTHON.parents[1].glob("lib/python3.*/site-packages/sglang"))
    if not found:
        pytest.skip("SGLang's environment is not there; make setup-sglang makes it")
    assert problems_of(ADAPTER, found[0].parent) == []


# The newest is the one that tests run.
@pytest.mark.parametrize("release", TESTED["sglang"][:-1])
def test_a_release_of_the_table_is_as_expected(release):
    root = sources_or_skip("sglang", release)
    assert problems_of(ADAPTER, root) == []
    sources = Sources("sglang", root)
    unknown = [one for named in ADAPTER.objects.values() for one in named if sources.find(one) is None]
    assert [one for one in unknown if not one.startswith("specctl_")] == []


def test_another_sglang_has_many_problems(tmp_path):
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    problems = problems_of(ADAPTER, tmp_path)
    assert len(problems) > 50
    targets = {patch.target for patch in ADAPTER.patches}
    assert {f"{target} not found" for target in targets} <= {one.words for one in problems}


def test_what_draft_models_lack_leaves_the_other_methods(monkeypatch):
    """As in 0.5.23, where names of the EAGLE worker moved."""
    root, path = sources_or_skip("sglang", TESTED["sglang"][-1]), Sources.path
    gone = "sglang.srt.speculative.eagle_worker_v2"
    monkeypatch.setattr(Sources, "path", lambda self, name: None if name == gone else path(self, name))
    found = problems_of(ADAPTER, root)
    assert found
    assert all(one.methods for one in found)
    assert not any(one.concerns("specctl_suffix") for one in found)
    assert any(one.concerns("eagle3") for one in found)


def test_every_patch_and_override_is_compared():
    found = relied_on(ADAPTER, sources_or_skip("sglang", TESTED["sglang"][-1]))
    assert {patch.target for patch in ADAPTER.patches} <= set(found)
    assert "sglang.srt.speculative.eagle_worker_v2:EagleDraftWorker._draft_extend_for_prefill" in found


def test_only_compat_and_the_cpu_launcher_import_sglang():
    assert {name.partition("/")[0] for name in importers(ADAPTER)} == {"compat", "cpu_serve"}


def test_whatever_runs_under_the_guard_is_named_by_a_patch():
    """So that a test raises in it on a real server."""
    assert guarded(ADAPTER) == {entry for patch in ADAPTER.patches for entry in patch.entries}
