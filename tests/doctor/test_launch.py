"""Planted mistakes in launch commands, on real checkpoint folders."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import HIDDEN, VOCABULARY, write_head, write_model

from specctl.cli.main import main
from specctl.doctor import environment_checks
from specctl.doctor.launch_checks import Given, examine_launch
from specctl.doctor.launch_line import is_launch, parse_launch
from specctl.doctor.report import Report

GIB = 2**30
Folders = Callable[[str], str]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tested releases of both engines and the plugins, whatever this environment holds."""
    versions = {"vllm": "0.32.0", "sglang": "0.5.23"}
    monkeypatch.setattr(environment_checks, "engine_version", versions.get)
    monkeypatch.setattr(
        environment_checks, "entry_points", lambda group: [type("Entry", (), {"name": "specctl"})]
    )


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Made when they are first named."""
    makers: dict[str, Callable[[Path], Path]] = {
        "target": write_model,
        "mtp": lambda path: write_model(path, num_nextn_predict_layers=1),
        "small": lambda path: write_model(path, num_hidden_layers=2, num_attention_heads=3, head_dim=16),
        "short": lambda path: write_model(path, max_position_embeddings=256),
        "other-words": lambda path: write_model(path, vocab_size=VOCABULARY * 2),
        "experts": lambda path: write_model(path, num_local_experts=8),
        "eagle": lambda path: write_head(path, "eagle"),
        "eagle3": lambda path: write_head(path, "eagle3"),
        "eagle3-wide": lambda path: write_head(path, "eagle3", hidden_size=HIDDEN * 2),
        "eagle3-words": lambda path: write_head(path, "eagle3", vocab_size=VOCABULARY * 2),
        "eagle3-torn": lambda path: write_head(path, "eagle3", fc_columns=7),
        "eagle3-no-map": lambda path: write_head(path, "eagle3", draft_vocab_size=100),
        "eagle3-deep": lambda path: write_head(path, "eagle3", eagle_aux_hidden_state_layer_ids=[1, 2, 40]),
        "speculators": lambda path: write_head(path, "speculators-eagle3"),
        "peagle": lambda path: write_head(path, "peagle"),
        "peagle-4": lambda path: write_head(path, "peagle", num_depths=4),
        "dflash": lambda path: write_head(path, "dflash"),
    }

    def folder(name: str) -> str:
        path = tmp_path / name
        return str(path if path.exists() else makers[name](path))

    return folder


def vllm(folder: str, config: dict[str, Any] | str | None, *more: str) -> list[str]:
    words = ["vllm", "serve", folder, "--max-num-seqs", "32", "--max-model-len", "1024", *more]
    if config is not None:
        words += ["--speculative-config", config if isinstance(config, str) else json.dumps(config)]
    return words


def sglang(folder: str, algorithm: str, *more: str) -> list[str]:
    start = ["python", "-m", "sglang.launch_server", "--model-path", folder, "--enable-metrics"]
    bounds = ["--max-running-requests", "32", "--context-length", "1024"]
    return [*start, *bounds, "--speculative-algorithm", algorithm, *more]


def examined(words: list[str], memory: float | None = 80 * GIB, **environment: str) -> Report:
    given = Given(memory, None, False)
    return examine_launch(parse_launch(words, environment), given, "it")


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity != "note"}


def own(method: str, **more: Any) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": 4, "specctl": {}, **more}


HEALTHY_VLLM = [
    ("specctl_suffix", None, "target"),
    ("specctl_peagle", "peagle", "target"),
    ("eagle", "eagle", "target"),
    ("eagle3", "eagle3", "target"),
    ("eagle3", "speculators", "target"),
    ("dflash", "dflash", "target"),
    ("draft_model", "target", "target"),
    ("mtp", None, "mtp"),
    ("ngram_gpu", None, "target"),
]


@pytest.mark.parametrize(("method", "draft", "target"), HEALTHY_VLLM)
def test_nothing_is_found_on_a_healthy_command(
    method: str, draft: str | None, target: str, folders: Folders
) -> None:
    more = {} if draft is None else {"model": folders(draft)}
    report = examined(vllm(folders(target), own(method, **more)))
    assert report.is_healthy, report.lines()
    assert report.exit_code(is_strict=True) == 0
    assert "memory" in report.checked


@pytest.mark.parametrize(
    ("algorithm", "draft", "more"),
    [
        ("SPECCTL_SUFFIX", None, ["--speculative-num-draft-tokens", "9"]),
        ("SPECCTL_PEAGLE", "peagle", ["--speculative-num-draft-tokens", "6"]),
        ("EAGLE3", "eagle3", ["--speculative-num-steps", "3", "--speculative-num-draft-tokens", "4"]),
        ("STANDALONE", "target", ["--speculative-num-steps", "3", "--speculative-num-draft-tokens", "4"]),
        ("NGRAM", None, ["--speculative-num-draft-tokens", "8"]),
    ],
)
def test_nothing_is_found_on_a_healthy_command_of_sglang(
    algorithm: str, draft: str | None, more: list[str], folders: Folders
) -> None:
    words = sglang(folders("target"), algorithm, *more)
    if draft is not None:
        words += ["--speculative-draft-model-path", folders(draft)]
    report = examined(words, SPECCTL_SGLANG_OPTIONS="{}")
    assert report.is_healthy, report.lines()


MISTAKES_VLLM: list[tuple[str, dict[str, Any], str, str, list[str]]] = [
    # What is to be found, config, the draft's folder, the target's, more of the command.
    ("draft-format", own("eagle3"), "peagle", "target", []),
    ("draft-format", own("specctl_peagle"), "eagle3", "target", []),
    ("draft-format", own("draft_model"), "eagle3", "target", []),
    ("draft-format", own("eagle3"), "eagle", "target", []),
    ("draft-format", own("mtp"), "", "target", []),
    ("draft-hidden-size", own("eagle3"), "eagle3-wide", "target", []),
    ("draft-vocabulary", own("eagle3"), "eagle3-words", "target", []),
    ("draft-vocabulary", own("eagle3"), "eagle3-no-map", "target", []),
    ("draft-vocabulary", own("draft_model"), "other-words", "target", []),
    ("draft-tensors", own("eagle3"), "eagle3-torn", "target", []),
    ("draft-layers", own("eagle3"), "eagle3-deep", "target", []),
    ("draft-missing", own("eagle3"), "", "target", []),
    ("draft-tensor-parallel", own("eagle3", draft_tensor_parallel_size=2), "eagle3", "target", ["-tp", "4"]),
    ("draft-tensor-parallel", own("draft_model", draft_tensor_parallel_size=1), "target", "mtp", ["-tp=2"]),
    ("draft-tensor-parallel", own("draft_model"), "small", "target", ["--tensor-parallel-size", "2"]),
    ("drafts-over-trained", own("specctl_peagle", num_speculative_tokens=8), "peagle-4", "target", []),
    ("draft-context", own("draft_model"), "short", "target", []),
    ("method-unknown", own("eagel3"), "eagle3", "target", []),
    ("method-removed", own("medusa"), "", "target", []),
    ("config-refused", own("specctl_suffix", min_tokn_prob=0.2), "", "target", []),
    ("config-refused", {"method": "ngram", "prompt_lookup_max": 4}, "", "target", []),
    ("config-refused", own("ngram_gpu", specctl={"lease_max": 3}), "", "target", []),
    ("not-lossless", own("ngram_gpu", rejection_sample_method="synthetic"), "", "target", []),
    ("runner-v1", own("suffix"), "", "target", []),
    ("runner-v1", own("draft_model", use_heterogeneous_vocab=True), "other-words", "target", []),
    ("runner-v1", {**own("eagle3"), "parallel_drafting": True}, "peagle", "target", []),
    ("graphs-miss-setting", own("ngram_gpu"), "", "target", ["--max-num-seqs", "512"]),
    ("graphs-off", own("ngram_gpu"), "", "target", ["--enforce-eager"]),
    ("metrics-off", own("ngram_gpu"), "", "target", ["--disable-log-stats"]),
    ("table-ignored", {"method": "ngram_gpu", "num_speculative_tokens": 4,
                       "num_speculative_tokens_per_batch_size": [[1, 8, 4]]}, "", "target", ["-dp", "2"]),
]  # fmt: skip


@pytest.mark.parametrize(("code", "config", "draft", "target", "more"), MISTAKES_VLLM)
def test_a_planted_mistake_is_the_one_that_is_found(
    code: str, config: dict[str, Any], draft: str, target: str, more: list[str], folders: Folders
) -> None:
    config = config if not draft else {**config, "model": folders(draft)}
    report = examined(vllm(folders(target), config, *more))
    also = {"draft-missing", "runner-v1"} if code == "method-removed" else set()
    assert codes(report) - also == {code}, report.lines()
    found = next(finding for finding in report.findings if finding.code == code)
    assert found.what
    assert found.seen
    assert found.do


@pytest.mark.parametrize(
    ("code", "words", "environment"),
    [
        ("draft-format", ["EAGLE3", "--speculative-draft-model-path", "peagle"], {}),
        ("draft-format", ["EAGLE3", "--speculative-draft-model-path", "speculators"], {}),
        ("draft-hidden-size", ["EAGLE3", "--speculative-draft-model-path", "eagle3-wide"], {}),
        ("draft-missing", ["EAGLE3"], {}),
        ("draft-format", ["NEXTN"], {}),
        ("method-unknown", ["EAGEL3"], {}),
        ("config-refused", ["NGRAM"], {"SPECCTL_SGLANG_OPTIONS": '{"candidats": [1]}'}),
        ("policy-cannot-act", ["NGRAM", "--speculative-num-draft-tokens", "5"],
         {"SPECCTL_SGLANG_OPTIONS": '{"candidates": [2, 4]}'}),
        ("graphs-miss-setting", ["NGRAM", "--speculative-num-draft-tokens", "5"],
         {"SPECCTL_SGLANG_OPTIONS": '{"candidates": [0, 4, 8]}'}),
        ("graphs-miss-setting", ["NGRAM", "--cuda-graph-max-bs", "8"], {}),
        ("tree-too-small", ["EAGLE3", "--speculative-draft-model-path", "eagle3",
                            "--speculative-num-steps", "1", "--speculative-eagle-topk", "2",
                            "--speculative-num-draft-tokens", "16"], {}),
        ("not-lossless", ["NGRAM", "--speculative-accept-threshold-single", "0.8"], {}),
        ("not-controllable", ["NGRAM", "--enable-dp-attention"], {"SPECCTL_SGLANG_OPTIONS": "{}"}),
        ("not-controllable", ["NGRAM", "--attn-dp-size", "2"], {"SPECCTL_SGLANG_OPTIONS": "{}"}),
        ("plugin-not-allowed", ["SPECCTL_SUFFIX"], {"SGLANG_PLUGINS": "other"}),
    ],
)  # fmt: skip
def test_a_planted_mistake_of_sglang(
    code: str, words: list[str], environment: dict[str, str], folders: Folders
) -> None:
    named = [
        folders(word) if before == "--speculative-draft-model-path" else word
        for before, word in zip(["", *words], words, strict=False)
    ]
    report = examined(sglang(folders("target"), *named), **environment)
    assert codes(report) == {code}, report.lines()


def test_ranks_that_step_together(folders: Folders) -> None:
    """On Model Runner V1 they agree where a step is scheduled behind the one before it."""

    def found(config: dict[str, Any], *more: str, target: str = "experts", **environment: str) -> set[str]:
        words = vllm(folders(target), config, "-dp", "2", *more)
        return codes(examined(words, **environment)) - {"runner-v1"}

    v1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert not found(own("ngram_gpu"))
    assert found(own("ngram_gpu"), **v1) == {"not-controllable"}
    assert not found(own("ngram_gpu"), target="target", **v1)
    assert not found(own("ngram_gpu"), "--no-async-scheduling", **v1)
    assert not found(own("suffix"), **v1)
    eagle3 = ["--speculative-draft-model-path", folders("eagle3"), "--enable-dp-attention"]
    steered = examined(sglang(folders("target"), "EAGLE3", *eagle3), SPECCTL_SGLANG_OPTIONS="{}")
    assert steered.is_healthy, steered.lines()


def test_files_that_cannot_be_read(folders: Folders, tmp_path: Path) -> None:
    def found(model: str) -> set[str]:
        return codes(examined(vllm(folders("target"), own("eagle3", model=model))))

    assert found(str(tmp_path / "nosuch")) == {"draft-unreadable"}
    (tmp_path / "empty").mkdir()
    assert found(str(tmp_path / "empty")) == {"draft-unreadable"}
    pointer = tmp_path / "eagle3" / "model.safetensors"
    folders("eagle3")
    pointer.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert found(str(tmp_path / "eagle3")) == {"draft-unreadable"}
    pointer.unlink()
    assert found(str(tmp_path / "eagle3")) == {"draft-without-weights"}
    assert codes(examined(vllm(str(tmp_path / "empty"), None))) == {"model-unreadable"}
    report = examined(vllm("meta-llama/Llama-3.1-8B-Instruct", own("eagle3", model="org/head")))
    assert report.is_healthy
    assert len(report.skipped) == 3


def test_what_cannot_be_recognised_is_no_finding(folders: Folders, tmp_path: Path) -> None:
    """A head of the first EAGLE with pytorch_model.bin; MTP layers by their tensors; Mistral's own format."""
    eagle = write_model(tmp_path / "first-eagle", num_hidden_layers=1)
    (eagle / "model.safetensors").rename(eagle / "pytorch_model.bin")
    assert examined(vllm(folders("target"), own("eagle", model=str(eagle)))).is_healthy
    unnamed = write_model(tmp_path / "unnamed")
    names = {"weight_map": {"model.layers.0.x": "a", "mtp.fc.weight": "b"}}
    (unnamed / "model.safetensors.index.json").write_text(json.dumps(names))
    assert examined(vllm(str(unnamed), own("mtp"))).is_healthy
    mistral = tmp_path / "mistral"
    mistral.mkdir()
    (mistral / "params.json").write_text("{}")
    assert examined(vllm(str(mistral), own("ngram_gpu"))).is_healthy


def test_a_config_that_is_no_json(folders: Folders) -> None:
    assert codes(examined(vllm(folders("target"), "{method: ngram}"))) == {"config-unreadable"}
    report = examined(vllm(folders("target"), None))
    assert [finding.code for finding in report.findings] == ["no-speculation"]
    assert report.is_healthy


def test_memory_that_will_run_out(folders: Folders) -> None:
    words = vllm(folders("target"), own("ngram_gpu"))
    assert codes(examined(words, 2 * GIB)) == {"memory-short"}
    report = examined([*words, "--max-num-seqs", "400"], 2.3 * GIB)
    assert "memory-tight" in codes(report)
    remedies = next(one.do for one in report.findings if one.code == "memory-tight")
    assert remedies.index("--max-num-seqs") < remedies.index("fp8") < remedies.index("tensor-parallel")


def test_plugin_and_release(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    words = vllm(folders("target"), own("specctl_suffix"))
    assert codes(examined(words, VLLM_PLUGINS="lora,other")) == {"plugin-not-allowed"}
    assert examined(words, VLLM_PLUGINS="lora, specctl").is_healthy
    assert codes(examined(["VLLM_PLUGINS=", *words])) == {"plugin-not-allowed"}
    stock = vllm(folders("target"), {"method": "ngram_gpu", "num_speculative_tokens": 4})
    assert examined(stock, VLLM_PLUGINS="other").is_healthy
    monkeypatch.setattr(environment_checks, "engine_version", {"vllm": "0.31.0"}.get)
    assert codes(examined(words)) == {"engine-untested"}
    assert examined(words, SPECCTL_UNTESTED_ENGINE="allow").is_healthy
    monkeypatch.setattr(environment_checks, "entry_points", lambda group: [])
    assert codes(examined(words)) == {"engine-untested", "plugin-not-installed"}


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        ("vllm serve M --tensor-parallel-size=2", "vllm"),
        ("CUDA_VISIBLE_DEVICES=0 /opt/bin/vllm serve M", "vllm"),
        ("env A=b nohup python3 -m vllm.entrypoints.openai.api_server --model M", "vllm"),
        ("python -m sglang.launch_server --model M --tp 2", "sglang"),
        ("sglang serve --model-path M", "sglang"),
        ("numactl -N 0 vllm serve M -tp 2", "vllm"),
    ],
)
def test_commands_are_told_from_targets(words: str, engine: str) -> None:
    launch = parse_launch(words.split())
    assert (launch.engine, launch.model) == (engine, "M")
    assert is_launch(words.split())
    assert not is_launch(["http://localhost:8000"])


def test_dotted_and_short_options() -> None:
    words = "vllm serve M --speculative_config.method ngram --speculative-config.num_speculative_tokens 4"
    config = parse_launch(words.split()).json_option("speculative-config")
    assert config == {"method": "ngram", "num_speculative_tokens": 4}


def test_the_command(folders: Folders, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    for name in ("VLLM_PLUGINS", "SGLANG_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    wrong = vllm(folders("target"), own("eagle3", model=folders("eagle3-wide")))
    assert main(["doctor", "--json", *wrong]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["healthy"]
    assert [finding["code"] for finding in report["findings"]] == ["draft-hidden-size"]
    warned = vllm(folders("target"), own("suffix"))
    assert main(["doctor", *warned]) == 0
    assert "[runner-v1]" in capsys.readouterr().out
    assert main(["doctor", "--strict", *warned]) == 1
    assert main(["doctor", "--cpu", "--strict", *warned]) == 0
    assert os.environ.get("SPECCTL_SGLANG_OPTIONS") is None
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", "ls", "-l"])
