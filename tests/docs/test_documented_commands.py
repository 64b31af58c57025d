"""Every ``specctl`` command in the documents is one that the command line takes, with every option."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from specctl.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = {"commands.md"}
# Of a command's usage or of a drawing, not of a call: "[--daemon URL]", "a|b", "...", "-->".
USAGE = re.compile(r"[\[\]]|\w\|\w|\.\.\.|-->")


def commands_of(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line.strip().removeprefix("$ ") for line in text.splitlines() if line.startswith("    "))
    return [line for line in lines if line.startswith("specctl ") and not USAGE.search(line)]


DOCUMENTED = [
    pytest.param(command, id=f"{page.name}: {command[:60]}")
    for page in PAGES
    if page.name not in GENERATED
    for command in commands_of(page)
]


@pytest.mark.parametrize("command", DOCUMENTED)
def test_it_is_taken(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [_, *arguments] = shlex.split(command, comments=True)
    with click.Context(cli, info_name="specctl") as root:
        parsed(cli, arguments, root)


def parsed(group: click.Group, arguments: list[str], parent: click.Context) -> None:
    name = arguments[0]
    if name.startswith("-"):
        assert any(name in option.opts for option in group.get_params(parent)), name
        return
    command = group.get_command(parent, name)
    assert command is not None, name
    if isinstance(command, click.Group):
        parsed(command, arguments[1:], parent)
        return
    command.make_context(name, list(arguments[1:]), parent=parent).close()


def test_paragraphs_are_short() -> None:
    """About five lines of a page."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for paragraph in re.split(r"\n\s*\n", text):
            if paragraph.startswith(("    ", "|", "#", "<!--")) or "|" in paragraph:
                continue
            for item in re.split(r"\n(?=\s*(?:[-*]|\d+\.) )", paragraph):
                words = " ".join(item.split())
                assert len(words) <= 520, f"{page.name}: {words[:80]}"
