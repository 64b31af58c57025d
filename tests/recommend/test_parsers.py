"""Every launch command that is recommended is read by the engine's own parser. Nothing is started."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import write_head, write_model

from specctl.checkpoints.draft import read_draft
from specctl.checkpoints.facts import read_facts
from specctl.doctor import environment_checks
from specctl.doctor.launch_line import parse_launch
from specctl.recommend.guide import Engine, guide
from specctl.recommend.launch import Machine
from specctl.recommend.ranking import Candidate, Request, ranked
from specctl.recommend.workload import Workload

ROOT = Path(__file__).resolve().parents[2]
SGLANG = Path(os.environ.get("SPECCTL_SGLANG_PYTHON", ROOT / ".venv-sglang" / "bin" / "python"))
SUPPORT = ROOT / "tests" / "support"

ADAPTIVE = ["--model-path", "m", "--speculative-algorithm", "EAGLE", "--speculative-adaptive"]


@pytest.fixture
def candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Engine, list[Candidate]]:
    """One for each pair of method and engine, with a draft of every kind."""
    monkeypatch.setattr(environment_checks, "engine_version", {"vllm": "0.32.0", "sglang": "0.5.23"}.get)
    monkeypatch.setattr(environment_checks, "_plugin_findings", lambda launch: iter(()))
    target = write_model(tmp_path / "target", num_nextn_predict_layers=1)
    drafts = [write_head(tmp_path / kind, kind) for kind in ("eagle", "eagle3", "peagle", "dflash")]
    drafts.append(write_model(tmp_path / "small", num_hidden_layers=2))
    request = Request(
        model=str(target),
        target=read_facts(target),
        drafts=tuple(read_draft(draft) for draft in drafts),
        engines=("vllm", "sglang"),
        workload=Workload(concurrency=100, context_tokens=1024),
        machine=Machine(gpus=2, gpu_memory_bytes=80 * 2**30),
    )
    found = ranked(request, guide())
    assert all(one.can_start for one in found), [(one.method.id, one.problems, one.missing) for one in found]
    pairs = {(one.method.id, one.method.engine) for one in found}
    assert pairs == {(method.id, method.engine) for method in guide().methods}
    assert len([pair for pair in pairs if pair[0] != "none"]) >= 14
    return {
        "vllm": [one for one in found if one.method.engine == "vllm"],
        "sglang": [one for one in found if one.method.engine == "sglang"],
    }


def read_by(python: str, script: str, work: dict[str, Any], folder: Path) -> Any:
    out = folder / "out.json"
    paths = [str(ROOT), *(str(ROOT / part) for part in ("plugins/vllm", "plugins/sglang", "kernels"))]
    done = subprocess.run(
        [python, str(SUPPORT / script), json.dumps({**work, "out": str(out)})],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text())


def arguments_of(candidate: Candidate, behind: str) -> list[str]:
    return candidate.command[candidate.command.index(behind) + 1 :]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_reads_its_commands(candidates: dict[Engine, list[Candidate]], tmp_path: Path) -> None:
    commands = [arguments_of(one, "serve") for one in candidates["vllm"]]
    read = read_by(sys.executable, "vllm_parses.py", {"commands": commands}, tmp_path)
    for candidate, one in zip(candidates["vllm"], read, strict=True):
        assert one["model"] == str(tmp_path / "target")
        assert one["wrong"] == [], candidate.method.id
        asked = None if candidate.method.is_none else candidate.method.config["method"]
        assert (one["asked"] or {}).get("method") == asked
        if candidate.draft is not None:
            assert one["asked"]["model"] == str(candidate.draft)


@pytest.mark.skipif(not SGLANG.exists(), reason="SGLang is not installed (make setup-sglang)")
def test_sglang_reads_its_commands(candidates: dict[Engine, list[Candidate]], tmp_path: Path) -> None:
    found = candidates["sglang"]
    commands = [arguments_of(one, "sglang.launch_server") for one in found]
    environments = [parse_launch(one.command).environment for one in found]
    work = {"commands": [*commands, ADAPTIVE], "environments": [*environments, {}]}
    *read, adaptive = read_by(str(SGLANG), "sglang_parses.py", work, tmp_path)
    assert adaptive["adapts"] == "speculative_adaptive"
    for candidate, one in zip(found, read, strict=True):
        assert one["adapts"] is None
        drafts = candidate.num_speculative_tokens
        assert one["model"] == str(tmp_path / "target")
        assert one["algorithm"] == (None if candidate.method.is_none else candidate.method.id)
        assert one["draft"] == (None if candidate.draft is None else str(candidate.draft))
        assert one["tokens"] == (None if candidate.method.is_none else drafts + 1)
        assert one["steps"] == (drafts if candidate.method.shape == "chain" else None)
