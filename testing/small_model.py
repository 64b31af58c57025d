"""A model whose steps are as short as an engine allows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

__all__ = ["write_small_model"]


def write_small_model(target: Path, folder: Path) -> Path:
    """``folder``, with a Llama of one layer and random weights that has the target's tokens. Greedy, it soon
    repeats itself, so that drafts are accepted."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = json.loads((target / "config.json").read_text(encoding="utf-8"))
    config = LlamaConfig(
        vocab_size=shape["vocab_size"],
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=shape["bos_token_id"],
        eos_token_id=shape["eos_token_id"],
        pad_token_id=shape["pad_token_id"],
    )
    torch.manual_seed(0)
    models: Any = AutoModelForCausalLM
    models.from_config(config, dtype=torch.float32).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(target / name, folder / name)
    return folder
