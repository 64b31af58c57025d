"""Models of random weights with the tokens of another one, which an engine loads and runs in no time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["copy_tokenizer", "write_random_model", "write_small_model"]


def write_small_model(target: Path, folder: Path) -> Path:
    """``folder``, with a Llama of one layer, whose steps are as short as an engine allows. Greedy, it soon
    repeats itself, so that drafts are accepted."""
    from transformers import LlamaConfig

    shape = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "initializer_range": 0.1,
    }
    return write_random_model(LlamaConfig, shape, target, folder)


def write_random_model(
    config: Callable[..., Any],
    shape: dict[str, Any],
    target: Path,
    folder: Path,
    change: Callable[[Any], None] = lambda model: None,
) -> Path:
    """``folder``, with a model of this class and shape in float32, and the target's tokens.

    change: of the model's weights before they are saved, without gradients.
    """
    import torch
    from transformers import AutoModelForCausalLM

    known = json.loads((target / "config.json").read_text(encoding="utf-8"))
    of_target = {name: known[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    torch.manual_seed(0)
    models: Any = AutoModelForCausalLM
    asked = config(**of_target, max_position_embeddings=2048, **shape)
    model = models.from_config(asked, dtype=torch.float32)
    with torch.no_grad():
        change(model)
    model.save_pretrained(folder)
    return copy_tokenizer(target, folder)


def copy_tokenizer(target: Path, folder: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(target / name, folder / name)
    return folder
