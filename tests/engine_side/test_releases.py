from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from specctl.engine.releases import ALLOW_ENV, TESTED, untested_reason
from tools import setup, setup_sglang

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("engine", sorted(TESTED))
def test_tested_releases_pass_with_any_local_part(engine: str) -> None:
    for release in TESTED[engine]:
        assert untested_reason(engine, release) is None
        assert untested_reason(engine, f"{release}+cpu") is None


@pytest.mark.parametrize("version", ["0.34.0", "0.31.0", "0.33.1rc1.dev4+g1a2b3c", "0.33.0.post1", "", "x"])
def test_others_do_not_and_the_reason_names_the_option(version: str) -> None:
    reason = untested_reason("vllm", version)
    assert reason is not None
    assert "0.33.0" in reason
    assert ALLOW_ENV in reason
    assert untested_reason("vllm", version, "allow") is None


def test_the_environment_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_ENV, "allow")
    assert untested_reason("sglang", "0.6.0") is None


def test_the_readme_and_the_extras_name_the_same_releases() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for engine, title in (("vllm", "vLLM"), ("sglang", "SGLang")):
        assert f"| {title} | {', '.join(TESTED[engine])} |" in readme
        (wanted,) = (one for one in extras[engine] if one.startswith(engine))
        specifier = SpecifierSet(wanted.removeprefix(engine))
        assert list(specifier.filter(TESTED[engine])) == list(TESTED[engine])
        major, minor, patch = map(int, TESTED[engine][-1].split("."))
        following = f"{major}.{minor + 1}.0" if engine == "vllm" else f"{major}.{minor}.{patch + 1}"
        assert following not in specifier


def test_the_environments_of_the_tests_hold_tested_releases() -> None:
    assert setup.VLLM in TESTED["vllm"]
    assert TESTED["sglang"][-1] == setup_sglang.SGLANG
    assert setup_sglang.FIRST[0] == f"sglang=={TESTED['sglang'][0]}"
