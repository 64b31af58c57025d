"""The order, its reasons, and what the command prints."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import RANDOM_TEXT, FakeEngine, Traffic
from support.checkpoints import HIDDEN, VOCABULARY, write_head, write_model

from specctl.checkpoints import config
from specctl.checkpoints.draft import Kind, read_draft
from specctl.checkpoints.facts import read_facts
from specctl.cli.main import main
from specctl.doctor import environment_checks, seen
from specctl.doctor.launch_line import parse_launch
from specctl.recommend import server
from specctl.recommend.command import WORKLOADS
from specctl.recommend.guide import Guide, guide
from specctl.recommend.launch import shell_line


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_checks, "engine_version", {"vllm": "0.32.0", "sglang": "0.5.23"}.get)
    monkeypatch.setattr(environment_checks, "_plugin_findings", lambda launch: iter(()))
    monkeypatch.setattr(server, "WINDOW_S", 0.1)
    monkeypatch.setattr(seen, "POLL_S", 0.05)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A target beside a folder of drafts."""
    write_model(tmp_path / "target")
    for kind in ("eagle3", "peagle"):
        write_head(tmp_path / "drafts" / kind, kind)
    write_head(tmp_path / "drafts" / "foreign", "eagle3", hidden_size=HIDDEN * 2)
    write_model(tmp_path / "drafts" / "other-words", vocab_size=2 * VOCABULARY)
    return tmp_path


def recommended(capsys: pytest.CaptureFixture[str], subject: str | Path, *more: str) -> dict[str, Any]:
    assert main(["recommend", str(subject), "--json", *more]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def order(report: dict[str, Any]) -> list[str]:
    return [one["method"] for one in report["ranked"]]


def test_the_guide_is_whole() -> None:
    rules = guide()
    assert len([method for method in rules.methods if not method.is_none]) >= 14
    assert tuple(rules.workloads) == WORKLOADS
    for family in rules.families.values():
        assert set(family.points) == set(WORKLOADS)
    for source in rules.sources.values():
        assert source.url.startswith("https://") or source.url.startswith("docs/")
    text = json.loads(rules.model_dump_json())
    text["rules"][0]["sources"] = ["nowhere"]
    with pytest.raises(ValueError, match="nowhere"):
        Guide.model_validate(text)


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["--workload", "agent"], {"specctl_hybrid", "specctl_suffix"}),
        (["--workload", "chat"], {"specctl_peagle", "specctl_hybrid"}),
        (["--workload", "embedding"], {"none"}),
        (["--workload", "chat", "--output-tokens", "20", "--concurrency", "300"], {"none"}),
        (["--workload", "code", "--cpu"], {"specctl_suffix"}),
    ],
)
def test_the_order_follows_the_traffic(
    arguments: list[str], first: set[str], folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafts = ["--draft", str(folders / "drafts")]
    report = recommended(capsys, folders / "target", *drafts, "--engine", "vllm", *arguments)
    assert order(report)[0] in first
    points = [one["points"] for one in report["ranked"]]
    assert points == sorted(points, reverse=True)
    assert all(one["reasons"] and one["cannot"] for one in report["ranked"])


def test_drafts_that_do_not_fit_say_why(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = recommended(capsys, folders / "target", "--draft", str(folders / "drafts"), "--engine", "vllm")
    assert {"eagle3", "specctl_peagle", "specctl_hybrid"} <= set(order(report))
    problems = {one["draft"]: " ".join(one["problems"]) for one in report["not_now"] if one["problems"]}
    assert "hidden size 128" in problems[str(folders / "drafts" / "foreign")]
    assert "vocab_size" in problems[str(folders / "drafts" / "other-words")]
    missing = {one["method"]: one["missing"] for one in report["not_now"] if one["missing"]}
    assert "--draft FOLDER" in missing["dflash"]
    assert missing["mtp"] == "the model has no MTP layers"


def test_memory_decides_too(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = recommended(capsys, folders / "target", "--engine", "vllm", "--gpu-memory", "80G")
    memory = report["ranked"][0]["memory"]
    assert memory["parts_gib"]["suffix index"] == 0.5
    assert memory["kv_bytes_per_token"] == 2 * 4 * 2 * 16 * 2
    assert memory["kv_tokens_that_fit"] > 10**6
    short = recommended(capsys, folders / "target", "--engine", "vllm", "--gpu-memory", "2G")
    assert order(short) == []
    assert all("no room" in " ".join(one["problems"]) for one in short["not_now"] if not one["missing"])


def test_without_a_head_training_is_pointed_to(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = recommended(capsys, folders / "target")
    steps = " ".join(report["training"]["steps"])
    assert f"--verifier-name-or-path {folders / 'target'}" in steps
    assert "speculators" in steps
    with_head = recommended(capsys, folders / "target", "--draft", str(folders / "drafts" / "peagle"))
    assert with_head["training"] is None


def test_a_name_on_a_hub(capsys: pytest.CaptureFixture[str]) -> None:
    report = recommended(capsys, "org/model", "--engine", "sglang")
    assert order(report)[0] == "SPECCTL_SUFFIX"
    assert "is not known" in next(one["missing"] for one in report["not_now"] if one["method"] == "NEXTN")
    assert "no folder here" in report["notes"][0]
    assert report["ranked"][0]["memory"] is None


def test_more_requests_than_the_guide_has_rows_for(capsys: pytest.CaptureFixture[str]) -> None:
    report = recommended(capsys, "org/model", "--engine", "vllm", "--concurrency", "1000001")
    assert report["ranked"]


def test_of_a_running_server(
    folders: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Serving(FakeEngine):
        def capabilities(self) -> Any:
            changes = {"model": str(folders / "target"), "method": "eagle3", "gpu": "NVIDIA H200"}
            return super().capabilities().model_copy(update=changes)

    with Serving(start_tokens=4, traffic=Traffic(decode_batch=4, accept_at=(0.3,) * 8)) as engine:
        engine.advance(60.0)
        report = recommended(capsys, engine.url, "--draft", str(folders / "drafts"))
    assert report["workload"]["concurrency"] == 4
    assert "--max-num-seqs 8 " in report["ranked"][0]["command"]
    assert report["workload"]["acceptance"] == pytest.approx(0.3, abs=0.1)
    assert {one["engine"] for one in report["ranked"]} == {"vllm"}
    eagle3 = next(one for one in report["ranked"] if one["method"] == "eagle3")
    assert any("another head gains more" in reason for reason in eagle3["reasons"])
    assert "of the time" in report["training"]["why"]
    with FakeEngine(start_tokens=4, traffic=RANDOM_TEXT, has_plugin=False) as engine:
        engine.advance(60.0)
        assert "no plugin" in recommended(capsys, engine.url)["notes"][0]
        folder = ["--model-folder", str(folders / "target")]
        assert recommended(capsys, engine.url, *folder)["ranked"][0]["memory"] is not None


def test_a_method_that_runs_and_is_accepted_is_over_none(capsys: pytest.CaptureFixture[str]) -> None:
    """On free text a guide expects as little of matches as of no drafts."""
    with FakeEngine(start_tokens=4, traffic=Traffic(decode_batch=1, accept_at=(0.9,) * 8)) as engine:
        engine.advance(60.0)
        report = recommended(capsys, engine.url)
    suffix, none = report["ranked"][0], next(one for one in report["ranked"] if one["method"] == "none")
    assert (suffix["method"], suffix["num_speculative_tokens"]) == ("specctl_suffix", 8)
    assert suffix["points"] > none["points"]
    assert any("method are accepted" in reason for reason in suffix["reasons"])
    assert none["reasons"][0].startswith("makes no drafts")
    assert none["cannot"] == ["no speed-up"]


def test_at_equal_points_none_is_last(capsys: pytest.CaptureFixture[str]) -> None:
    ranked = recommended(capsys, "org/model")["ranked"]
    level = [one["method"] for one in ranked if one["points"] == 1.0]
    assert level == ["specctl_suffix", "SPECCTL_SUFFIX", "none", "none"]


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "http://127.0.0.1:1"]) == 1
    assert main(["recommend", "/nosuch"]) == 4
    with pytest.raises(SystemExit, match="2"):
        main(["recommend", "m", "--log", "x"])
    assert "go together" in capsys.readouterr().err


def test_in_words(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--draft", str(folders / "drafts"), "--gpu-memory", "80G", "--top", "2"]
    assert main(["recommend", str(folders / "target"), *arguments]) == 0
    out = capsys.readouterr().out
    commands = [line for line in out.splitlines() if line.startswith("  start ")]
    assert len(commands) == 2
    words = shlex.split(commands[0].removeprefix("  start "))
    assert parse_launch(words).model == str(folders / "target")
    for part in ("arxiv.org", "memory", "limits", "not now", "then"):
        assert part in out


def test_a_shell_reads_the_line_as_the_words() -> None:
    words = ['SPECCTL_SGLANG_OPTIONS={"candidates": [0, 4]}', "python", "-m", "x", "--config", '{"a": "b c"}']
    assert shlex.split(shell_line(words)) == words


def test_what_a_config_leaves_out_comes_from_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = write_model(tmp_path / "m")
    kept = json.loads((model / "config.json").read_text())
    del kept["vocab_size"], kept["max_position_embeddings"]
    (model / "config.json").write_text(json.dumps(kept))
    facts = read_facts(model)
    assert (facts.vocab_size, facts.max_position_tokens) == (32000, 2048)
    assert facts.num_kv_heads == 2


def test_configs_by_hand_and_by_transformers(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_transformers = read_facts(folders / "target")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert read_facts(folders / "target") == by_transformers
    assert config.read_config(folders / "target") == config.raw_config(folders / "target")
    assert read_draft(folders / "drafts" / "peagle").kind is Kind.PEAGLE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_key_value_heads": 1}, 2 * 4 * 1 * 16 * 2),
        ({"kv_lora_rank": 32, "qk_rope_head_dim": 8}, 4 * 40 * 2),
        ({"torch_dtype": "float32"}, 2 * 4 * 2 * 16 * 4),
        ({"layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, 2 * 1 * 2 * 16 * 2),
        (
            {"text_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}},
            2 * 2 * 4 * 16 * 2,
        ),
    ],
)
def test_kv_cache_of_a_token(
    changes: dict[str, Any], expected: int, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    if "text_config" in changes:
        model = write_model(tmp_path / "m", model_type="gemma3", **changes)
        text = json.loads((model / "config.json").read_text())
        kept = {key: text[key] for key in ("architectures", "model_type", "text_config", "torch_dtype")}
        (model / "config.json").write_text(json.dumps(kept))
    else:
        model = write_model(tmp_path / "m", **changes)
    assert read_facts(model).kv_bytes_per_token == expected
