"""A list of patches on a module that stands for an engine's."""

from __future__ import annotations

import contextlib
import functools
import sys
import types

import pytest

from specctl.engine.patches import Patch, PatchConflict, check_conflicts, install, is_ours

SOURCE = """
class Base:
    def inherited(self): return "base"

class Engine(Base):
    def step(self): return "stock"
    @staticmethod
    def name(): return "engine"

def load(): return ["stock"]
"""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("made_engine")
    exec(SOURCE, module.__dict__)
    monkeypatch.setitem(sys.modules, "made_engine", module)
    return module


def wrap(original):
    @functools.wraps(original)
    def wrapped(*args):
        return ("ours", original(*args))

    return wrapped


def patch(target: str, **more) -> Patch:
    known = {"why": "a test", "upstream": "none: a test", "until": "never", "process": "engine", "wrap": wrap}
    return Patch(f"made_engine:{target}", **(known | more))


def test_wraps_once_whoever_asks(engine: types.ModuleType) -> None:
    patches = [patch("Engine.step"), patch("load")]
    assert install(patches) == ["made_engine:Engine.step", "made_engine:load"]
    assert install(patches) == []
    assert engine.Engine().step() == ("ours", "stock")
    assert engine.load() == ("ours", ["stock"])
    assert is_ours(engine.load)


def test_an_engines_own_decorator_is_no_other_plugin(engine: types.ModuleType) -> None:
    decorated = contextlib.contextmanager(engine.Engine.step)
    decorated.__module__ = "made_engine.steps"
    engine.Engine.step = decorated
    assert install([patch("Engine.step")]) == ["made_engine:Engine.step"]


def test_a_static_method_stays_one(engine: types.ModuleType) -> None:
    install([patch("Engine.name")])
    assert engine.Engine().name() == ("ours", "engine")
    assert install([patch("Engine.name")]) == []


def test_an_inherited_method_leaves_the_base_alone(engine: types.ModuleType) -> None:
    install([patch("Engine.inherited")])
    assert engine.Engine().inherited() == ("ours", "base")
    assert engine.Base().inherited() == "base"


def test_an_added_attribute(engine: types.ModuleType) -> None:
    added = patch("Engine.extra", adds=True, wrap=lambda original: lambda self: original)
    assert install([added]) == ["made_engine:Engine.extra"]
    assert engine.Engine().extra() is None
    assert install([added]) == []
    with pytest.raises(PatchConflict, match="exists already"):
        install([patch("Engine.step", adds=True)])


def test_another_plugins_patch_is_a_conflict(engine: types.ModuleType) -> None:
    original = engine.Engine.step

    @functools.wraps(original)
    def theirs(self):
        return original(self)

    engine.Engine.step = theirs
    with pytest.raises(PatchConflict, match=r"Engine\.step has been replaced by .*test_patches"):
        install([patch("load"), patch("Engine.step")])
    # All or none.
    assert engine.load() == ["stock"]


def test_a_missing_target_changes_nothing(engine: types.ModuleType) -> None:
    with pytest.raises(AttributeError):
        install([patch("load"), patch("Engine.gone")])
    assert engine.load() == ["stock"]


def test_methods() -> None:
    assert patch("load").serves("eagle")
    assert not patch("load", methods=frozenset({"suffix"})).serves("eagle")
    assert patch("Engine.step").entry == "Engine.step"


def test_a_conflict_is_found_where_the_module_is_imported(
    engine: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches = [
        patch("Engine.step"),
        Patch("nowhere.to_be_found:f", wrap, "worker", "A test.", "none: a test", ""),
    ]
    check_conflicts(patches)
    engine.Engine.step = lambda self: "another's"
    with pytest.raises(PatchConflict, match=r"Engine\.step has been replaced by .*test_patches"):
        check_conflicts(patches)
    monkeypatch.delitem(sys.modules, "made_engine")
    check_conflicts(patches)
