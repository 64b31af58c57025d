"""Sources and documents name no file of the repository that is not there."""

from __future__ import annotations

import re

from testing.provenance import ROOT

FOLDERS = (
    "benchmarks", "demo", "deploy", "docs", "kernels", "plugins", "policies", "specctl", "testing", "tests",
    "tools",
)  # fmt: skip
NAMED = re.compile(rf"(?<![\w/.])(?:{'|'.join(FOLDERS)})/[\w/.-]+\.(?:json|md|py|sh|toml|yaml)\b")
INVENTED = {"docs/no_file.py", "policies/balancde.yaml"}
"""By tests, for what is not there."""


def missing_in(text: str, files: set[str]) -> list[str]:
    """A name may leave out the folders before its own."""
    named = set(NAMED.findall(text)) - INVENTED - files
    return [name for name in named if not any(file.endswith(f"/{name}") for file in files)]


def test_files_that_are_named_exist() -> None:
    paths = [path for one in FOLDERS for path in (ROOT / one).rglob("*") if path.is_file()]
    files = {path.relative_to(ROOT).as_posix() for path in paths}
    readers = [path for path in paths if path.suffix in {".md", ".py", ".sh", ".yaml"}]
    missing = {path: lacks for path in readers if (lacks := missing_in(path.read_text("utf-8"), files))}
    assert not missing


def test_a_name_without_a_file_is_noticed() -> None:
    gone, here, below = (f"{folder}/file.py" for folder in ("benchmarks", "tools", "specctl"))
    assert missing_in(f"see {gone}, {here} and {below}", {here, f"plugins/vllm/{below}"}) == [gone]
