"""Every ``specctl`` command in the documents is one that the command line takes, and does what it says.

Those that need a server run on a real one in tests/engine/test_suffix_server.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import numpy as np
import pytest
from support.checkpoints import write_head, write_model
from support.documented_commands import PAGES, Documented, documented, run

from specctl.cli.main import cli
from specctl.draft.corpus_file import save
from specctl.draft.frozen_corpus import build_block

DOCUMENTED = [pytest.param(command, id=command.name) for command in documented()]
ALONE = [
    pytest.param(command, id=command.name)
    for command in documented()
    if not command.needs_server and not command.is_elsewhere
]
RUNGS = (1, 2, 6)
EXIT_CODES = {"doctor": {0, 1}, "freeze": {5}}
"""``doctor`` may find something on the machine of the tests; ``freeze`` finds no daemon there."""


@pytest.mark.parametrize("command", DOCUMENTED)
def test_it_is_taken(command: Documented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with click.Context(cli, info_name="specctl") as root:
        parsed(cli, list(command.words), root)


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


@pytest.fixture(scope="module")
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages name, as a user would have them."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("my-policy.yaml", "our-policy.yaml", "POLICY_OR_TARGETS"):
        (folder / name).write_text("kind: goodput\n")
    (folder / "targets.yaml").write_text(
        "policies: [{match: {}, policy: our-policy.yaml}]\ntargets: [{url: 'http://127.0.0.1:8000'}]\n"
    )
    load = "".join(f"{second},100,50\n" for second in range(8))
    (folder / "load.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{load}")
    for name in ("MODEL", "Llama-3.1-8B-Instruct"):
        write_model(folder / name)
    for name in ("HEAD", "heads/eagle3", "checkpoints/checkpoint_best"):
        write_head(folder / name, "eagle3")
    save(folder / "FILE", build_block([np.array([1, 2, 3, 4], np.int32)], RUNGS), "team", "f" * 32)
    for arm, rate in (("off", 50.0), ("with", 80.0)):
        for number in (1, 2, 3):
            result = {
                "duration": 10.0,
                "completed": 16,
                "total_input_tokens": 900,
                "total_output_tokens": 10 * (rate + number),
            }
            (folder / f"{arm}-{number}.json").write_text(json.dumps(result))
    return folder


@pytest.mark.parametrize("command", ALONE)
def test_it_runs(command: Documented, user_folder: Path) -> None:
    code, output = run(command, user_folder)
    assert code in EXIT_CODES.get(command.words[0], {0}), output
    assert "Traceback" not in output


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
