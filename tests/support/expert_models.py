"""The reference target as a mixture of experts, for ranks that step together: its outputs, by other layers.

All experts of a layer are its own dense one, so that a trained model's text is kept, and its gaps between
tokens, whichever experts a token is sent to.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.random_models import write_checkpoint

from testing.random_model import copy_tokenizer

__all__ = ["write_experts", "write_experts_with_mtp"]

EXPERTS, CHOSEN = 4, 2
DENSE_LAYERS = 6
_Weights = dict[str, Any]


def write_experts_with_mtp(target: Path, folder: Path) -> Path:
    """``folder``, with a GLM-4-MoE whose last layers and whose MTP layer are mixtures of experts.

    The MTP layer drafts the last token again: right wherever text repeats a token.
    """
    import torch

    shape, weights = _read(target)
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    head = f"model.layers.{layers}"
    last = f"model.layers.{layers - 1}"
    copied = {
        name.replace(last, head): value.clone() for name, value in weights.items() if name.startswith(last)
    }
    for name in (f"{head}.self_attn.o_proj.weight", f"{head}.mlp.down_proj.weight"):
        copied[name].zero_()
    weights |= copied
    for layer in range(DENSE_LAYERS, layers + 1):
        _split(weights, f"model.layers.{layer}.mlp")
    zeros = torch.zeros(hidden, hidden, dtype=torch.bfloat16)
    weights |= {
        f"{head}.eh_proj.weight": torch.cat([zeros, torch.eye(hidden, dtype=torch.bfloat16)], dim=1),
        **{f"{head}.{name}.weight": torch.ones(hidden) for name in ("enorm", "hnorm", "shared_head.norm")},
        f"{head}.shared_head.head.weight": weights["lm_head.weight"].clone(),
        f"{head}.embed_tokens.weight": weights["model.embed_tokens.weight"].clone(),
    }
    config = {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "n_shared_experts": 1,
        "moe_intermediate_size": shape["intermediate_size"],
        "first_k_dense_replace": DENSE_LAYERS,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "use_qk_norm": False,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 1.0,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": shape["rope_theta"],
            "partial_rotary_factor": 1.0,
        },
    }
    return copy_tokenizer(target, write_checkpoint(folder, shape | config, weights))


def _split(weights: _Weights, name: str) -> None:
    """A dense layer becomes experts, each of them the same, and a shared one that adds nothing."""
    import torch

    for part in ("gate_proj", "up_proj", "down_proj"):
        dense = weights.pop(f"{name}.{part}.weight")
        for expert in range(EXPERTS):
            weights[f"{name}.experts.{expert}.{part}.weight"] = dense.clone()
        weights[f"{name}.shared_experts.{part}.weight"] = torch.zeros_like(dense)
    hidden = dense.shape[0]
    weights[f"{name}.gate.weight"] = _router(hidden)
    weights[f"{name}.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)


def write_experts(target: Path, folder: Path) -> Path:
    """``folder``, with a Granite MoE that gives EAGLE-3 heads of the target the states that they were trained
    on."""
    import torch

    shape, weights = _read(target)
    for layer in range(shape["num_hidden_layers"]):
        own = f"model.layers.{layer}"
        gate, up, down = (
            weights.pop(f"{own}.mlp.{part}.weight") for part in ("gate_proj", "up_proj", "down_proj")
        )
        moe = f"{own}.block_sparse_moe"
        weights[f"{moe}.input_linear.weight"] = torch.stack([torch.cat([gate, up])] * EXPERTS)
        weights[f"{moe}.output_linear.weight"] = torch.stack([down] * EXPERTS)
        weights[f"{moe}.router.layer.weight"] = _router(shape["hidden_size"])
    config = {
        "architectures": ["GraniteMoeForCausalLM"],
        "model_type": "granitemoe",
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "attention_multiplier": shape["head_dim"] ** -0.5,
    }
    return copy_tokenizer(target, write_checkpoint(folder, shape | config, weights))


def _router(hidden: int) -> Any:
    import torch

    return torch.randn(EXPERTS, hidden, generator=torch.Generator().manual_seed(hidden)).bfloat16()


def _read(target: Path) -> tuple[dict[str, Any], _Weights]:
    from safetensors.torch import load_file

    shape = json.loads((target / "config.json").read_text(encoding="utf-8"))
    weights = load_file(str(target / "model.safetensors"))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    shape["tie_word_embeddings"] = False
    return shape, weights
