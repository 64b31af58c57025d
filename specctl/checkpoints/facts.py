"""Sizes of a model that decide what a draft must fit and what its memory is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specctl.checkpoints.config import CheckpointError, read_config
from specctl.checkpoints.tensors import tensor_names, weight_bytes
from specctl.engine.machine import EXPERT_KEYS

__all__ = ["ModelFacts", "facts_of", "read_facts", "text_config"]

_DTYPE_BYTES = {"float32": 4, "float": 4, "float16": 2, "bfloat16": 2, "half": 2, "float8_e4m3fn": 1}
_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "mtp_num_layers")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """None: the config does not say."""

    folder: Path
    hidden_size: int | None
    vocab_size: int | None
    num_layers: int | None
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    max_position_tokens: int | None
    num_kv_layers: int | None
    """Layers whose keys and values grow with the text: not those of a sliding window or linear attention."""
    dtype_bytes: int
    mtp_layers: int
    experts: int | None
    weight_bytes: int | None
    kv_latent_size: int | None
    """Numbers of a token's latent state in a layer (multi-head latent attention); None: another attention."""

    @property
    def kv_bytes_per_token(self) -> int | None:
        """Keys and values of one token in all layers, in the model's own dtype."""
        if self.num_kv_layers is None:
            return None
        if self.kv_latent_size is not None:
            return self.num_kv_layers * self.kv_latent_size * self.dtype_bytes
        if self.num_kv_heads is None or self.head_dim is None:
            return None
        return 2 * self.num_kv_layers * self.num_kv_heads * self.head_dim * self.dtype_bytes


def read_facts(folder: Path) -> ModelFacts:
    """Raises CheckpointError."""
    return facts_of(folder, read_config(folder))


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part that describes the decoder: nested in multimodal models and in the format of speculators."""
    for key in ("text_config", "transformer_layer_config", "llm_config", "language_config"):
        inner = config.get(key)
        if isinstance(inner, dict):
            return inner
    thinker = config.get("thinker_config")
    return text_config(thinker) if isinstance(thinker, dict) else config


def facts_of(folder: Path, config: dict[str, Any]) -> ModelFacts:
    """Raises CheckpointError for sizes that are no numbers."""
    text = text_config(config)

    def number(*keys: str) -> int | None:
        for key in keys:
            value = text.get(key, config.get(key))
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise CheckpointError(f"{folder / 'config.json'}: {key}: expected a number, found {value!r}")
            return value
        return None

    hidden, heads = number("hidden_size", "n_embd", "d_model"), number("num_attention_heads", "n_head")
    head_dim = number("head_dim") or (hidden // heads if hidden and heads else None)
    dtype = text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or config.get("dtype")
    latent = number("kv_lora_rank")
    return ModelFacts(
        folder=folder,
        hidden_size=hidden,
        vocab_size=number("vocab_size"),
        num_layers=number("num_hidden_layers", "n_layer"),
        num_heads=heads,
        num_kv_heads=number("num_key_value_heads") or heads,
        head_dim=head_dim,
        max_position_tokens=number("max_position_embeddings", "n_positions"),
        dtype_bytes=_DTYPE_BYTES.get(str(dtype).removeprefix("torch."), 2),
        num_kv_layers=_kv_layers(text, number("num_hidden_layers", "n_layer")),
        mtp_layers=number(*_MTP_KEYS) or _mtp_layers_of_weights(folder),
        experts=number(*EXPERT_KEYS) or None,
        weight_bytes=weight_bytes(folder),
        kv_latent_size=None if latent is None else latent + (number("qk_rope_head_dim") or 0),
    )


def _kv_layers(text: dict[str, Any], layers: int | None) -> int | None:
    types = text.get("layer_types")
    whole = types.count("full_attention") if isinstance(types, list) else 0
    return whole or layers


def _mtp_layers_of_weights(folder: Path) -> int:
    """Some configs do not name them. 1 where there are any."""
    parts = ("mtp.", ".mtp", "mtp_", "nextn")
    return int(any(part in name for name in tensor_names(folder) for part in parts))
