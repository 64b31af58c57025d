"""The check of an engine, on an engine and a plugin that are a few lines each."""

from __future__ import annotations

from pathlib import Path

import pytest

from specctl.engine.engine_check import Adapter, problems_of, relied_on
from specctl.engine.patches import Patch, imported

ENGINE = {
    "__init__": "",
    "shared": "from madeengine.parts import helper as made\nfrom .parts import Part\n",
    "parts": """
from dataclasses import dataclass
from enum import Enum

class Part:
    limit: int = 3
    def __init__(self, size, *, name=""):
        self.size, self.name = size, name
    def step(self, batch, plan=None):
        self.last = batch
    @property
    def width(self): return 1
    @classmethod
    def of(cls, size): return cls(size)

class Wide(Part):
    def wide(self): ...

@dataclass
class Batch:
    tokens: int
    lengths: int = 0

class Mode(Enum):
    PLAIN = 1

def helper(first, second=0, *, third): ...
def load(path, *, strict=False): ...
""",
}
PLUGIN = {
    "__init__": "",
    "compat/__init__": "",
    "compat/workers": """
from typing import Any
from madeengine.shared import made
from madeengine.parts import Batch, Mode, Wide
from madeplugin.compat.mixin import Counting

class Worker(Counting, Wide):
    def step(self, batch, plan=None, **more):
        self.own = self.size + self.limit + self.width + batch.tokens + batch.lengths
        super().step(batch, plan=plan)
        made(1, third=2)
        return Mode.PLAIN.name, Batch(tokens=1), Wide.of(2)
""",
    "compat/mixin": """
class Counting:
    counted = 0
    def count(self):
        self.counted += self.last
""",
    "compat/wraps": """
def wrap_load(original):
    def load(path, *args, **kwargs):
        return original(path, *args, **kwargs)
    return load
""",
}


def patch(target: str, name: str, *methods: str) -> Patch:
    wrap = imported("madeplugin.compat.wraps", name)
    return Patch(target, wrap, "engine", "A test.", "none: a test", "never", frozenset(methods))


PATCHES = (patch("madeengine.parts:load", "wrap_load"),)


def written(folder: Path, package: str, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def adapter(tmp_path: Path, plugin: dict[str, str], patches: tuple[Patch, ...] = PATCHES, **more) -> Adapter:
    folder = written(tmp_path / "plugin", "madeplugin", PLUGIN | plugin) / "madeplugin"
    known = {
        "objects": {"batch": ("madeengine.parts:Batch",), "worker": ("madeengine.parts:Wide",)},
        "joined": {},
        "methods": {"compat/workers": frozenset({"wide"})},
    }
    return Adapter("madeengine", "madeplugin", folder, patches, **(known | more))


def found(tmp_path: Path, engine: dict[str, str] | None = None, plugin: dict[str, str] | None = None, **more):
    root = written(tmp_path / "engine", "madeengine", ENGINE | (engine or {}))
    return problems_of(adapter(tmp_path, plugin or {}, **more), root)


def without(text: str, by: str = "") -> dict[str, str]:
    assert text in ENGINE["parts"]
    return {"parts": ENGINE["parts"].replace(text, by)}


def test_an_engine_as_expected_has_no_problem(tmp_path: Path) -> None:
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (without("class Wide(Part)", "class Broad(Part)"), "madeengine.parts.Wide not found"),
        (
            without("def helper(first, second=0, *, third)", "def other(first)"),
            "madeengine.shared.made not found",
        ),
        ({"shared": "from .parts import Part\n"}, "madeengine.shared.made not found"),
        (without("second=0, *, third", "second, *, third"), "madeengine.parts.made: needs second"),
        (without("third", "fourth"), "madeengine.parts.made: there is no argument third"),
        (without("self.size, self.name", "self.bytes, self.name"), "size not found behind Worker"),
        (without("self.last = batch", "pass"), "last not found behind Worker"),
        (without("limit: int = 3"), "limit not found behind Worker"),
        (without("lengths: int = 0", "many: int = 0"), "madeengine.parts.Batch.lengths not found"),
        (without("plan=None", "plans=None"), "madeengine.parts.super().step: there is no argument plan"),
        (without("def of(cls, size)", "def of(cls, size, more)"), "madeengine.parts.Wide.of: needs more"),
        (without("PLAIN = 1", "SIMPLE = 1"), "madeengine.parts.Mode.PLAIN not found"),
        (without("def load(", "def loaded("), "madeengine.parts:load not found"),
        ({"parts": "def ("}, "madeengine.parts cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_an_engine_lacks_is_named(tmp_path: Path, engine: dict[str, str], words: str) -> None:
    assert any(one.words.startswith(words) for one in found(tmp_path, engine)), found(tmp_path, engine)


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (
            "self, batch, plan=None",
            "self, batch, plan=None, mark=None",
            "called with mark=, which ours does not",
        ),
        (
            "self, batch, plan=None",
            "self, batch, plan=None, *, mark",
            "called with mark=, which ours does not",
        ),
        ("self, batch, *more", "self, batch, plan=None", "called with plan=, which ours does not take"),
        ("self, plan, batch", "self, batch, plan=None", "batch is argument 1 there, and another one of ours"),
        ("self, batch, plan, mark", "self, batch, plan=None", "called without mark, which ours needs"),
        ("self, batch, plan=None, mark=0", "self, batch, plan=None", None),
        ("self, *given, **named", "self, batch, plan=None, *, mark", None),
        ("self, batch, **named", "self, batch, plan=None", None),
    ],
)
def test_an_override_takes_whatever_the_engines_own_takes(
    tmp_path: Path, ours: str, theirs: str, words: str | None
) -> None:
    step = f"from madeengine.parts import Part\nclass Other(Part):\n    def step({ours}): ...\n"
    problems = found(tmp_path, without("self, batch, plan=None", theirs), {"compat/other": step})
    general = [one.words for one in problems if not one.methods]
    assert general == [] if words is None else any(f"Part.step: {words}" in one for one in general)


def test_a_wrapper_takes_whatever_the_engines_own_takes(tmp_path: Path) -> None:
    narrow = {"compat/wraps": PLUGIN["compat/wraps"].replace("path, *args, **kwargs", "path")}
    problems = found(tmp_path, plugin=narrow)
    assert [one.words for one in problems] == [
        "madeengine.parts:load: called with strict=, which ours does not take"
    ]


def test_a_problem_takes_away_the_methods_that_need_the_file_or_the_patch(tmp_path: Path) -> None:
    (problem,) = found(tmp_path, without("lengths: int = 0"))
    assert problem.methods == {"wide"}
    assert problem.concerns("wide")
    assert not problem.concerns("narrow")
    patches = (*PATCHES, patch("madeengine.parts:gone", "wrap_gone", "narrow"))
    (problem,) = found(tmp_path, patches=patches)
    assert (problem.words, problem.methods) == ("madeengine.parts:gone not found", {"narrow"})


def test_a_parameter_with_a_type_of_its_own_is_not_the_engines(tmp_path: Path) -> None:
    text = "from typing import Any\ndef count(batch: {}):\n    return batch.anything\n"
    assert found(tmp_path, plugin={"compat/typed": text.format("Mine")}) == []
    (problem,) = found(tmp_path, plugin={"compat/typed": text.format("Any")})
    assert problem.words == "madeengine.parts.Batch.anything not found"


def test_a_call_on_an_object_of_the_engines(tmp_path: Path) -> None:
    text = "def run(worker):\n    worker.step(1, 2, 3)\n    worker.specctl_note()\n    worker.wide()\n"
    (problem,) = found(tmp_path, plugin={"compat/calls": text})
    assert problem.words == "madeengine.parts.worker.step: takes 2 arguments, gets 3"


def test_a_class_that_is_joined_while_the_engine_runs(tmp_path: Path) -> None:
    text = "class Joined:\n    def use(self):\n        return self.size + self.nowhere\n"
    plugin = {"compat/joined": text}
    assert found(tmp_path, plugin=plugin) == []
    (problem,) = found(tmp_path, plugin=plugin, joined={"Joined": "madeengine.parts:Part"})
    assert problem.words == "nowhere not found behind Joined"


def test_what_is_replaced_is_listed(tmp_path: Path) -> None:
    root = written(tmp_path / "engine", "madeengine", ENGINE)
    assert set(relied_on(adapter(tmp_path, {}), root)) == {
        "madeengine.parts:load",
        "madeengine.parts:Part.step",
    }


def test_an_engine_that_is_not_installed(tmp_path: Path) -> None:
    (problem,) = problems_of(adapter(tmp_path, {}))
    assert problem.words == "madeengine is not installed"
