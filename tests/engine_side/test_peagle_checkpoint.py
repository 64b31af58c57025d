from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from specctl.engine.peagle_checkpoint import PEagleCheckpoint, check_peagle_checkpoint

HIDDEN, VOCAB, LAYERS = 8, 32, 6
EAGLE3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 4,
    "vocab_size": VOCAB,
    "draft_vocab_size": VOCAB,
    "ptd_token_id": 6,
}
SPECULATORS: dict[str, Any] = {
    "architectures": ["PEagleSpeculator"],
    "speculators_model_type": "peagle",
    "mask_token_id": 6,
    "num_depths": 8,
    "draft_vocab_size": VOCAB,
    "eagle_aux_hidden_state_layer_ids": [1, 3, 6],
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "vocab_size": VOCAB,
    },
    "speculators_config": {
        "algorithm": "peagle",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 8}],
        "verifier": {"name_or_path": "target"},
    },
}
TENSORS: dict[str, tuple[int, ...]] = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "lm_head.weight": (VOCAB, HIDDEN),
    "mask_hidden": (1, 1, 3 * HIDDEN),
}
SMALL = {**EAGLE3, "draft_vocab_size": 16}
SMALL_TENSORS = {**TENSORS, "lm_head.weight": (16, HIDDEN)}


def changed(config: dict[str, Any], **values: Any) -> dict[str, Any]:
    """None takes a key out; a dict changes what is below the key."""
    merged = dict(config)
    for key, value in values.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


def without(*names: str) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in TENSORS.items() if name not in names}


def write(folder: Path, config: Any, tensors: dict[str, tuple[int, ...]]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    values = {name: np.zeros(shape, np.float16) for name, shape in tensors.items()}
    save_file(values, folder / "model.safetensors", {"format": "pt"})
    return folder


def check(folder: Path, **values: Any) -> PEagleCheckpoint:
    target = {"target_hidden_size": HIDDEN, "target_vocab_size": VOCAB, "target_num_hidden_layers": LAYERS}
    return check_peagle_checkpoint(folder, **{**target, "num_speculative_tokens": 8, **values})


@pytest.fixture
def reference(shared_models: Path) -> dict[str, Any]:
    config = json.loads((shared_models / "reference-target" / "config.json").read_text(encoding="utf-8"))
    return {f"target_{key}": config[key] for key in ("hidden_size", "vocab_size", "num_hidden_layers")}


def test_the_reference_head_fits_the_reference_target(shared_models: Path, reference: dict[str, Any]) -> None:
    folder = shared_models / "reference-peagle"
    layers = json.loads((folder / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]
    assert check(folder, **reference) == PEagleCheckpoint(
        format="eagle3",
        mask_token_id=6,
        trained_tokens=None,
        draft_vocab_size=reference["target_vocab_size"],
        num_layers=layers,
        file=folder / "model.safetensors",
    )


def test_the_reference_eagle3_head_is_sent_to_its_own_method(
    shared_models: Path, reference: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match='a plain EAGLE-3 head: "method": "eagle3"'):
        check(shared_models / "reference-eagle3", **reference)


def test_a_target_of_another_size_is_refused(shared_models: Path, reference: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="hidden_size: expected the target's hidden size 640, found "):
        check(shared_models / "reference-peagle", **{**reference, "target_hidden_size": 640})


@pytest.mark.parametrize("key", ["ptd_token_id", "pard_token", "mask_token_id"])
def test_an_eagle3_config_names_the_mask_token_in_one_of_three_ways(tmp_path: Path, key: str) -> None:
    write(tmp_path, {**changed(EAGLE3, ptd_token_id=None), key: 31}, TENSORS)
    found = check(tmp_path, num_speculative_tokens=64)
    assert (found.format, found.mask_token_id, found.trained_tokens) == ("eagle3", 31, None)


def test_vllm_prefers_pard_token(tmp_path: Path) -> None:
    assert check(write(tmp_path, changed(EAGLE3, pard_token=7), TENSORS)).mask_token_id == 7


def test_the_format_of_speculators(tmp_path: Path) -> None:
    found = check(write(tmp_path, SPECULATORS, TENSORS))
    assert found == PEagleCheckpoint(
        "speculators", 6, 8, VOCAB, num_layers=2, file=tmp_path / "model.safetensors"
    )


def test_speculative_tokens_stand_in_for_an_absent_num_depths(tmp_path: Path) -> None:
    assert check(write(tmp_path, changed(SPECULATORS, num_depths=None), TENSORS)).trained_tokens == 8


@pytest.mark.parametrize("methods", [[], [{}], ["greedy"], None])
def test_nothing_is_checked_where_no_number_is_named(tmp_path: Path, methods: Any) -> None:
    config = changed(SPECULATORS, num_depths=None, speculators_config={"proposal_methods": methods})
    assert check(write(tmp_path, config, TENSORS), num_speculative_tokens=64).trained_tokens is None


def test_a_smaller_vocabulary_comes_with_its_mapping(tmp_path: Path) -> None:
    write(tmp_path, SMALL, {**SMALL_TENSORS, "d2t": (16,), "t2d": (VOCAB,)})
    assert check(tmp_path).draft_vocab_size == 16


def test_draft_vocab_size_is_that_of_the_target_where_it_is_absent(tmp_path: Path) -> None:
    assert check(write(tmp_path, changed(EAGLE3, draft_vocab_size=None), TENSORS)).draft_vocab_size == VOCAB


def test_a_head_may_be_narrower_than_its_target(tmp_path: Path) -> None:
    config = changed(EAGLE3, hidden_size=4, target_hidden_size=HIDDEN)
    write(tmp_path, config, {**TENSORS, "fc.weight": (4, 3 * HIDDEN), "lm_head.weight": (VOCAB, 4)})
    assert check(tmp_path).num_layers == 4


def test_a_head_may_read_another_number_of_states(tmp_path: Path) -> None:
    config = changed(EAGLE3, num_aux_hidden_states=2, eagle_aux_hidden_state_layer_ids=[0, LAYERS])
    write(tmp_path, config, {**TENSORS, "fc.weight": (HIDDEN, 2 * HIDDEN), "mask_hidden": (2 * HIDDEN,)})
    assert check(tmp_path).num_layers == 4


def test_tensors_are_gathered_from_several_files(tmp_path: Path) -> None:
    write(tmp_path, EAGLE3, without("mask_hidden"))
    save_file({"mask_hidden": np.zeros(3 * HIDDEN, np.float16)}, tmp_path / "other.safetensors")
    assert check(tmp_path).file == tmp_path / "other.safetensors"


def test_a_bin_file_that_may_run_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    with tarfile.open(tmp_path / "pytorch_model.bin", "w"):
        pass
    with pytest.raises(ValueError, match="expected safetensors"):
        check(tmp_path)


def test_tensors_of_a_bin_file_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert check(tmp_path).file == tmp_path / "pytorch_model.bin"
    (tmp_path / "config.json").write_text(json.dumps(changed(EAGLE3, ptd_token_id=None)))
    with pytest.raises(ValueError, match='"method": "eagle3"'):
        check(tmp_path)


LAYER = "transformer_layer_config"
AUX = "eagle_aux_hidden_state_layer_ids"
BAD_CONFIGS = {
    "a list": ([], "config.json: expected a JSON object, found []"),
    "no P-EAGLE head": (
        changed(EAGLE3, ptd_token_id=None, architectures=["LlamaForCausalLM"]),
        "mask_token_id or pard_token or ptd_token_id: expected the id of the mask token, found nothing",
    ),
    "speculators' EAGLE-3": (
        changed(SPECULATORS, speculators_model_type="eagle3"),
        'found "eagle3"; a plain EAGLE-3 head goes with "method": "eagle3"',
    ),
    "another speculator": (
        changed(SPECULATORS, speculators_model_type="dflash"),
        'speculators_model_type: expected peagle, found "dflash"',
    ),
    "speculators without a mask token": (
        changed(SPECULATORS, mask_token_id=None, ptd_token_id=6),
        "config.json: mask_token_id: expected the id of the mask token, found nothing",
    ),
    "no layer config": (
        {key: value for key, value in SPECULATORS.items() if key != LAYER},
        f"config.json: {LAYER}: expected an object, found nothing",
    ),
    "mask token outside": (
        changed(EAGLE3, ptd_token_id=VOCAB),
        f"ptd_token_id: expected a token id below the vocabulary's size {VOCAB}, found {VOCAB}",
    ),
    "mask token negative": (changed(EAGLE3, ptd_token_id=-1), "expected an integer of at least 0, found -1"),
    "mask token no number": (changed(EAGLE3, ptd_token_id="6"), 'at least 0, found "6"'),
    "hidden size of another target": (
        changed(SPECULATORS, transformer_layer_config={"hidden_size": 16}),
        f"hidden_size: expected the target's hidden size {HIDDEN}, found 16",
    ),
    "made for a wider target": (
        changed(EAGLE3, target_hidden_size=16),
        f"target_hidden_size: expected the target's hidden size {HIDDEN}, found 16",
    ),
    "vocabulary of another target": (
        changed(EAGLE3, vocab_size=64),
        f"vocab_size: expected the target's vocabulary size {VOCAB}, found 64",
    ),
    "no vocabulary": (changed(EAGLE3, vocab_size=None), "vocab_size: expected an integer of at least 1"),
    "larger draft vocabulary": (
        changed(EAGLE3, draft_vocab_size=64),
        f"draft_vocab_size: expected at most vocab_size {VOCAB}, found 64",
    ),
    "no layers": (
        changed(EAGLE3, num_hidden_layers=0),
        "num_hidden_layers: expected an integer of at least 1",
    ),
    "no aux states": (
        changed(EAGLE3, eagle_config={"use_aux_hidden_state": False}),
        "eagle_config.use_aux_hidden_state: expected true, found false",
    ),
    "too few aux layers": (changed(EAGLE3, **{AUX: [1, 2]}), f"{AUX}: expected 3 different layers"),
    "the same aux layer twice": (changed(EAGLE3, **{AUX: [1, 2, 2]}), f"{AUX}: expected 3 different layers"),
    "aux layer that the target has not": (
        changed(SPECULATORS, **{AUX: [1, 2, 7]}),
        f"{AUX}: expected numbers of layers from 0 to {LAYERS}, the number of the target's layers",
    ),
    "trained for fewer": (
        changed(SPECULATORS, num_depths=4),
        "num_speculative_tokens: expected at most 4, the number that",
    ),
}


@pytest.mark.parametrize(("config", "message"), BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
def test_a_config_that_does_not_fit_is_refused(tmp_path: Path, config: Any, message: str) -> None:
    write(tmp_path, config, TENSORS)
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        check(tmp_path)
    assert str(tmp_path / "config.json") in str(refused.value)


NO_HEAD = {"model.norm.weight": (HIDDEN,)}
BAD_TENSORS = {
    "plain EAGLE-3": (
        changed(EAGLE3, ptd_token_id=None),
        without("mask_hidden"),
        'found a plain EAGLE-3 head: "method": "eagle3" is the one to use for it',
    ),
    "some other model": (
        changed(EAGLE3, ptd_token_id=None, architectures=["LlamaForCausalLM"]),
        NO_HEAD,
        "expected a P-EAGLE head, with mask_token_id or pard_token or ptd_token_id here and a tensor "
        'mask_hidden in its weights, found neither (architectures: ["LlamaForCausalLM"])',
    ),
    "mask state missing": (
        EAGLE3,
        without("mask_hidden"),
        "mask_hidden: expected 24 values (3 states x hidden",
    ),
    "mask state of one state": (
        EAGLE3,
        {**TENSORS, "mask_hidden": (1, 1, HIDDEN)},
        "mask_hidden: expected 24 values (3 states x hidden size 8), found shape (1, 1, 8)",
    ),
    "fc missing": (EAGLE3, without("fc.weight"), "fc.weight: expected shape (8, 24), found no such tensor"),
    "fc for another target": (
        EAGLE3,
        {**TENSORS, "fc.weight": (HIDDEN, 48)},
        "fc.weight: expected shape (8, 24), found shape (8, 48)",
    ),
    "mapping missing": (
        SMALL,
        SMALL_TENSORS,
        "tensor d2t: expected, because draft_vocab_size 16 is not vocab_size 32",
    ),
    "mapping of another vocabulary": (
        SMALL,
        {**SMALL_TENSORS, "d2t": (VOCAB,)},
        "d2t: expected shape (16,), found shape (32,)",
    ),
    "output layer of another vocabulary": (
        SMALL,
        {**TENSORS, "d2t": (16,)},
        "lm_head.weight: expected shape (16, 8), found shape (32, 8)",
    ),
    "embedding of another vocabulary": (
        EAGLE3,
        {**TENSORS, "embed_tokens.weight": (64, HIDDEN)},
        "embed_tokens.weight: expected shape (32, 8), found shape (64, 8)",
    ),
}


@pytest.mark.parametrize(("config", "tensors", "message"), BAD_TENSORS.values(), ids=BAD_TENSORS.keys())
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, config: Any, tensors: Any, message: str) -> None:
    write(tmp_path, config, tensors)
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        check(tmp_path)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("asked", [0, -1])
def test_less_than_one_token_is_refused(tmp_path: Path, asked: int) -> None:
    with pytest.raises(ValueError, match=f"num_speculative_tokens: expected at least 1, found {asked}"):
        check(write(tmp_path, EAGLE3, TENSORS), num_speculative_tokens=asked)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found no folder"):
        check(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"expected a file config\.json, found none"):
        check(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: expected JSON"):
        check(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(EAGLE3))
    with pytest.raises(ValueError, match=r"expected weights in \*\.safetensors or pytorch_model\.bin"):
        check(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\n",
        (40).to_bytes(8, "little") + b'{"a":',
        (2).to_bytes(8, "little") + b"[]",
        (10).to_bytes(8, "little") + b'{"a":null}',
        (8).to_bytes(8, "little") + b'{"a":{}}',
    ],
    ids=["empty", "git-lfs pointer", "cut short", "a list", "no entry", "no shape"],
)
def test_a_file_that_is_no_safetensors_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps(EAGLE3))
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors: expected a safetensors file"):
        check(tmp_path)
