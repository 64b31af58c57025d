"""The list of what is relied on inside SGLang, against the plugin's sources and an installed SGLang."""

import ast
import os
from pathlib import Path

import pytest
from specctl_sglang.compat.canary import missing_seams
from specctl_sglang.compat.relied_on import RELIED_ON
from specctl_sglang.patches import PATCHES

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "sglang" / "specctl_sglang"
PYTHON = Path(os.environ.get("SPECCTL_SGLANG_PYTHON", ROOT / ".venv-sglang" / "bin" / "python"))


def imported():
    for path in sorted(PLUGIN.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sglang":
                yield from ((path, node.module, alias.name) for alias in node.names)


def test_every_import_of_sglang_is_listed():
    listed = {(seam.module, seam.qualname.split(".")[0]) for seam in RELIED_ON}
    modules = {seam.module for seam in RELIED_ON}
    for path, module, name in imported():
        is_module = f"{module}.{name}" in modules
        assert is_module or (module, name) in listed, f"{path.name}: {module}.{name}"


def test_only_compat_and_the_cpu_launcher_touch_sglang():
    assert {path.parent.name for path, _, _ in imported() if path.name != "cpu_serve.py"} == {"compat"}


def test_every_patch_is_on_a_listed_seam():
    listed = {f"{seam.module}:{seam.qualname}" for seam in RELIED_ON}
    assert {patch.target for patch in PATCHES} - listed - {f"{one}.__init__" for one in listed} <= {
        "sglang.srt.speculative.eagle_worker_v2:EagleDraftWorker"
    }


def test_the_installed_sglang_has_every_seam():
    found = sorted(PYTHON.parents[1].glob("lib/python3.*/site-packages/sglang"))
    if not found:
        pytest.skip("SGLang's environment is not there; make setup-sglang makes it")
    assert missing_seams(found[0].parent) == []


def test_a_missing_seam_is_named(tmp_path):
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    found = missing_seams(tmp_path)
    assert len(found) == len(RELIED_ON)
    assert "sglang.version.__version__(): module sglang.version not found" in found
