import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from specctl.engine.guard import GUARD

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("SPECCTL_CACHE", ROOT / ".cache"))
SIBLING = ROOT.parent / "shared"
SHARED = Path(
    os.environ.get("SPECCTL_SHARED", SIBLING if (SIBLING / "models").is_dir() else CACHE / "reference")
)
"""A folder ``shared`` beside the repository, else what ``make reference-models`` trains."""


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """What is collected after the last test is no test's: a socket of a closed client, for one. Filters of a
    test can still be in force then, as warnings.catch_warnings is not safe where threads use it, too."""
    warnings.filterwarnings("ignore", category=ResourceWarning)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``make test`` looks for servers' tests in one folder."""
    for item in items:
        if item.get_closest_marker("engine") and ROOT / "tests" / "engine" not in item.path.parents:
            raise pytest.UsageError(f"{item.nodeid}: what needs a server belongs in tests/engine")


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    """What the guard of this process counts is one test's; a test that expects failures clears them."""
    GUARD.failures.clear()
    yield
    failures = dict(GUARD.failures)
    GUARD.failures.clear()
    assert not failures


def _folder(path: Path, setting: str) -> Path:
    if not path.is_dir():
        pytest.skip(f"{path.name} is not there; set {setting} to the folder that holds it")
    return path


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The reference target and its draft heads."""
    return _folder(SHARED / "models", "SPECCTL_SHARED")


@pytest.fixture(scope="session")
def target_model(shared_models: Path) -> Path:
    """The reference target: 27 M parameters, so that a CPU makes hundreds of tokens a second."""
    return _folder(shared_models / "reference-target", "SPECCTL_SHARED")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Prompts and traces of the development split."""
    return _folder(SHARED / "data", "SPECCTL_SHARED")
