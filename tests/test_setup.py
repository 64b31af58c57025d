"""Set-up's stamps: what ran is not run again, what failed or changed is."""

import sys
from pathlib import Path

import pytest

from tools import setup


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(setup, "STAMPS", tmp_path / "stamps")
    return []


def test_a_stage_runs_once_for_the_same_dependencies(runs: list[str]) -> None:
    def work() -> None:
        runs.append("run")

    for depends_on, so_far in (("a", 1), ("a", 1), ("b", 2), ("b", 2), ("a", 3)):
        setup.stage("work", work, depends_on)
        assert len(runs) == so_far


def test_a_stage_that_failed_runs_again(runs: list[str]) -> None:
    def work() -> None:
        runs.append("run")
        if len(runs) == 1:
            raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        setup.stage("work", work)
    setup.stage("work", work)
    assert len(runs) == 2


def test_a_stage_whose_result_is_gone_runs_again(runs: list[str]) -> None:
    def work() -> None:
        runs.append("run")

    setup.stage("work", work)
    setup.stage("work", work, is_there=False)
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("torch==2.13.0", "torch"),
        ("Torchaudio>=2 ; platform_machine == 'x'", "torchaudio"),
        ("fastapi[standard]>=0.115", "fastapi"),
        ("torch-c-dlpack-ext (>=1)", "torch-c-dlpack-ext"),
    ],
)
def test_requirement_name(requirement: str, name: str) -> None:
    assert setup.requirement_name(requirement) == name


def test_every_import_package_is_known_to_the_install() -> None:
    names = {Path(folder).name for folder in setup.packages()}
    assert names == {"specctl", "specctl_vllm", "specctl_sglang", "specctl_kernels"}


def test_uv_looks_where_pip_is_configured_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"INDEX_URL": "https://a/simple", "FIND_LINKS": "/b /c"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    setup.pip_places.cache_clear()
    places = setup.pip_places()
    setup.pip_places.cache_clear()
    found = list(zip(places[::2], places[1::2], strict=True))
    assert sorted(found) == [
        ("--find-links", "/b"),
        ("--find-links", "/c"),
        ("--index-url", "https://a/simple"),
    ]
