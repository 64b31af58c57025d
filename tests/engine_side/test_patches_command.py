"""``specctl patches``: the lists of both plugins, in words and as JSON."""

from __future__ import annotations

import json

import pytest
import specctl_sglang.patches
import specctl_vllm.patches

from specctl.cli.main import main

PLUGINS = {"vllm": specctl_vllm.patches.PATCHES, "sglang": specctl_sglang.patches.PATCHES}


@pytest.mark.parametrize("engine", PLUGINS)
def test_every_patch_is_printed(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patches", engine]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 130
    for patch in PLUGINS[engine]:
        assert any(line.startswith(patch.target) for line in lines)
    assert sum(line.startswith("  until") for line in lines) == len(PLUGINS[engine])


@pytest.mark.parametrize("engine", PLUGINS)
def test_as_json(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patches", engine, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["target"] for one in printed] == [patch.target for patch in PLUGINS[engine]]
    assert all(one["why"] and one["upstream"] and one["until"] for one in printed)


def test_an_engine_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["patches", "tgi"])
    assert "'tgi' is not one of 'sglang', 'vllm'" in capsys.readouterr().err
