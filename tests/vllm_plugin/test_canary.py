import importlib.util
from pathlib import Path

import pytest
from specctl_vllm.compat.canary import RELIED_ON, Seam, missing_seams

has_vllm = importlib.util.find_spec("vllm") is not None


@pytest.mark.skipif(not has_vllm, reason="vllm is not installed")
def test_the_installed_vllm_has_every_seam():
    assert missing_seams() == []


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
        ("def (", "cannot be read"),
    ],
)
def test_a_mismatch_is_named(tmp_path, text, problem):
    write(tmp_path, text)
    found = missing_seams(tmp_path, (Seam("vllm.thing", "A.f", ("self", "x")),))
    assert found == [] if problem is None else problem in found[0]


def test_another_vllm_reports_every_missing_module(tmp_path):
    write(tmp_path, "")
    assert len(missing_seams(tmp_path)) == len(RELIED_ON)
