"""Small checkpoint folders with config.json and safetensors, as engines and heads are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

__all__ = ["HIDDEN", "LAYERS", "VOCABULARY", "write_head", "write_model"]

HIDDEN, LAYERS, VOCABULARY = 64, 4, 512
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def write_model(folder: Path, **changes: Any) -> Path:
    """A language model; ``changes`` of its config."""
    config = {**_LLAMA, **changes}
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    weights = {"model.embed_tokens.weight": (vocabulary, hidden), "lm_head.weight": (vocabulary, hidden)}
    return _written(folder, config, weights)


def write_head(folder: Path, kind: str, *, fc_columns: int | None = None, **changes: Any) -> Path:
    """``kind``: eagle, eagle3, peagle, dflash, or speculators-eagle3 for that library's format."""
    config: dict[str, Any] = {**_LLAMA, "num_hidden_layers": 1, **changes}
    hidden = config["hidden_size"]
    states = 1 if kind == "eagle" else 3
    weights = {"fc.weight": (hidden, fc_columns or states * hidden)}
    if kind == "eagle":
        weights["layers.0.self_attn.q_proj.weight"] = (hidden, hidden)
    elif kind == "dflash":
        config |= {"architectures": ["DFlashDraftModel"], "block_size": 8}
    else:
        config["architectures"] = ["LlamaForCausalLMEagle3"]
        weights["midlayer.hidden_norm.weight"] = (hidden, 1)
    if kind == "peagle":
        config["ptd_token_id"] = 6
        weights["mask_hidden"] = (1, states * hidden)
    if kind == "speculators-eagle3":
        layer = {key: value for key, value in config.items() if key != "architectures"}
        config = {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": config["vocab_size"],
            "transformer_layer_config": layer,
        }
    return _written(folder, config, weights)


def _written(folder: Path, config: dict[str, Any], weights: dict[str, tuple[int, ...]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    arrays = {name: np.zeros(shape, np.float16) for name, shape in weights.items()}
    save_file(arrays, folder / "model.safetensors")
    return folder
