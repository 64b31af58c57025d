"""A P-EAGLE checkpoint of either format in the form that SGLang loads."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import save_file
from specctl_sglang.peagle_head import ARCHITECTURE, HeadTarget, prepared_head, refuse_peagle_head

HIDDEN, VOCAB, LAYERS = 8, 32, 6
TARGET = HeadTarget(HIDDEN, VOCAB, LAYERS)
LLAMA = {"model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": 2, "vocab_size": VOCAB}
EAGLE3 = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VOCAB, "ptd_token_id": 6}
SPECULATORS = {
    "speculators_model_type": "peagle",
    "mask_token_id": 7,
    "draft_vocab_size": VOCAB,
    "norm_before_residual": True,
    "eagle_aux_hidden_state_layer_ids": [2, 3, 5],
    "transformer_layer_config": {**LLAMA, "rope_theta": 5e5},
}
TENSORS = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "lm_head.weight": (VOCAB, HIDDEN),
    "mask_hidden": (1, 1, 3 * HIDDEN),
}


def write(folder, config, tensors=TENSORS):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    values = {name: np.zeros(shape, np.float16) for name, shape in tensors.items()}
    save_file(values, folder / "model.safetensors", {"format": "pt"})
    return folder


def prepared(folder, config, tensors=TENSORS):
    made = prepared_head(write(folder, config, tensors), TARGET, 5)
    return made, json.loads((made / "config.json").read_text())


def reference_target(shared_models):
    config = json.loads((shared_models / "reference-target" / "config.json").read_text())
    return HeadTarget(config["hidden_size"], config["vocab_size"], config["num_hidden_layers"])


def test_the_reference_head(shared_models):
    head = shared_models / "reference-peagle"
    made = prepared_head(head, reference_target(shared_models), 5)
    config = json.loads((made / "config.json").read_text())
    assert config["architectures"] == [ARCHITECTURE]
    assert config["ptd_token_id"] == 6
    assert config["draft_vocab_size"] == reference_target(shared_models).vocab_size
    assert (made / "model.safetensors").resolve() == (head / "model.safetensors").resolve()


def test_the_checkpoint_itself_stays_as_it_is(tmp_path):
    made, _ = prepared(tmp_path / "head", EAGLE3)
    assert json.loads((tmp_path / "head" / "config.json").read_text()) == EAGLE3
    assert made != tmp_path / "head"
    assert (made / "tokenizer.json").is_file()


def test_the_format_of_speculators(tmp_path):
    _, config = prepared(tmp_path / "head", SPECULATORS)
    assert (config["model_type"], config["architectures"]) == ("llama", [ARCHITECTURE])
    assert (config["ptd_token_id"], config["rope_theta"]) == (7, 5e5)
    assert config["norm_before_residual"]


@pytest.mark.parametrize("config", [{**EAGLE3, "eagle_aux_hidden_state_layer_ids": [2, 3, 5]}, SPECULATORS])
def test_layers_are_named_by_what_comes_before_them(tmp_path, config):
    """SGLang adds 1 to what it finds."""
    _, made = prepared(tmp_path / "head", config)
    assert made["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 4]
    assert made["num_aux_hidden_states"] == 3


def test_without_an_output_layer_the_target_s_is_shared(tmp_path):
    tensors = {name: shape for name, shape in TENSORS.items() if name != "lm_head.weight"}
    _, config = prepared(tmp_path / "head", EAGLE3, tensors)
    assert config["draft_vocab_size"] is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param({**EAGLE3, "model_type": "qwen3"}, 'a head of llama layers, found "qwen3"', id="layers"),
        pytest.param(
            {**EAGLE3, "eagle_aux_hidden_state_layer_ids": [2, 3, 6]},
            "numbers of layers from 1 to 5, before which SGLang can take a state, found", id="last layer",
        ),
        pytest.param(
            {**EAGLE3, "eagle_aux_hidden_state_layer_ids": [0, 3, 5]},
            "numbers of layers from 1 to 5", id="embedding",
        ),
        pytest.param({**EAGLE3, "hidden_size": 16}, "the target's hidden size 8, found 16", id="hidden size"),
        pytest.param(
            {**EAGLE3, "hidden_size": 16, "target_hidden_size": 8},
            "expected a tensor embed_tokens.weight, found none", id="no embedding of its own",
        ),
    ],
)  # fmt: skip
def test_what_sglang_cannot_serve_is_refused(tmp_path, config, message):
    tensors = TENSORS if config["hidden_size"] == HIDDEN else {"fc.weight": (16, 24), "mask_hidden": (24,)}
    with pytest.raises(ValueError, match=re.escape(message)):
        prepared(tmp_path / "head", config, tensors)


def test_a_token_map_cuts_the_output_layer(tmp_path):
    head = write(tmp_path / "head", EAGLE3)
    made = prepared_head(head, TARGET, 5, [9, 2, 30, 9])
    config = json.loads((made / "config.json").read_text())
    assert config["draft_vocab_size"] == 3
    assert np.load(config["specctl_token_map"]).tolist() == [2, 9, 30]


@pytest.mark.parametrize(
    ("config", "tensors", "ids", "message"),
    [
        pytest.param(EAGLE3, TENSORS, [VOCAB], "expected ids from 0 to 31, found 32 to 32", id="too high"),
        pytest.param(EAGLE3, TENSORS, [-1, 2], "expected ids from 0 to 31, found -1 to 2", id="negative"),
        pytest.param(EAGLE3, TENSORS, [], "expected ids from 0 to 31, found none", id="empty"),
        pytest.param(
            {**EAGLE3, "draft_vocab_size": 16},
            {**TENSORS, "lm_head.weight": (16, HIDDEN), "d2t": (16,), "t2d": (VOCAB,)}, [1],
            "an output layer of its own for all 32 tokens, found one of 16", id="has chosen before",
        ),
        pytest.param(
            EAGLE3, {name: shape for name, shape in TENSORS.items() if name != "lm_head.weight"}, [1],
            "an output layer of its own for all 32 tokens, found none", id="the target's output layer",
        ),
    ],
)  # fmt: skip
def test_a_token_map_that_does_not_fit_is_refused(tmp_path, config, tensors, ids, message):
    head = write(tmp_path / "head", config, tensors)
    with pytest.raises(ValueError, match=re.escape(message)):
        prepared_head(head, TARGET, 5, ids)


def test_an_eagle3_head_is_sent_to_its_own_algorithm(shared_models):
    with pytest.raises(ValueError, match="--speculative-algorithm EAGLE3 is the one to use for it"):
        prepared_head(shared_models / "reference-eagle3", reference_target(shared_models), 5)


def test_a_peagle_head_is_refused_where_drafts_come_one_by_one(tmp_path, shared_models):
    by = "--speculative-algorithm SPECCTL_PEAGLE"
    with pytest.raises(ValueError, match=r"found a P-EAGLE head.*--speculative-algorithm SPECCTL_PEAGLE"):
        refuse_peagle_head(shared_models / "reference-peagle", "EAGLE3", by)
    with pytest.raises(ValueError, match="found a P-EAGLE head"):
        refuse_peagle_head(write(tmp_path / "head", SPECULATORS), "EAGLE3", by)
    refuse_peagle_head(shared_models / "reference-eagle3", "EAGLE3", by)
    refuse_peagle_head(tmp_path / "nothing", "EAGLE3", by)
