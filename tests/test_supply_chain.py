"""Nothing that specctl ships runs what a file holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("specctl", "plugins", "kernels", "testing", "tools", "demo", "benchmarks")
MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}


def found_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            yield from called(node)


def called(node: ast.Call) -> Iterator[str]:
    words = ast.unparse(node.func)
    given = {one.arg: ast.unparse(one.value) for one in node.keywords}
    if words in CALLS or words in {"yaml.load", "yaml.unsafe_load", "yaml.full_load"}:
        yield words
    if words == "torch.load" and given.get("weights_only") != "True":
        yield "torch.load without weights_only"
    if given.get("allow_pickle", "False") != "False":
        yield f"{words} with allow_pickle"


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_is_unpickled_or_run(folder: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)}: {words}"
        for path in (ROOT / folder).rglob("*.py")
        for words in found_in(path)
    }
    assert not wrong


def test_what_unpickles_is_found(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(
        "import pickle\nfrom joblib import load\neval(x)\ntorch.load(f)\nnp.load(f, allow_pickle=True)\n"
    )
    assert len(list(found_in(path))) == 5
