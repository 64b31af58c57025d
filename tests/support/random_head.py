"""A DFlash head of random weights: never right, so that only what surrounds a draft is tested."""

import json
from pathlib import Path

LAYERS_READ = (1, 4, 6)
"""Of the target, whose hidden states the head reads."""


def write_random_dflash(target: Path, folder: Path) -> Path:
    """``folder``, with the config and the weights of a head of one layer in the target's shape."""
    import torch
    from safetensors.torch import save_file

    shape = json.loads((target / "config.json").read_text(encoding="utf-8"))
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    head, heads, kv_heads = shape["head_dim"], shape["num_attention_heads"], shape["num_key_value_heads"]
    config = {
        **{name: value for name, value in shape.items() if name not in ("architectures", "model_type")},
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 1,
        "dflash_config": {"mask_token_id": 0, "target_layer_ids": list(LAYERS_READ), "causal": True},
    }
    matrices = {
        "fc": (hidden, hidden * len(LAYERS_READ)),
        "layers.0.self_attn.q_proj": (heads * head, hidden),
        "layers.0.self_attn.k_proj": (kv_heads * head, hidden),
        "layers.0.self_attn.v_proj": (kv_heads * head, hidden),
        "layers.0.self_attn.o_proj": (hidden, heads * head),
        "layers.0.mlp.gate_proj": (inner, hidden),
        "layers.0.mlp.up_proj": (inner, hidden),
        "layers.0.mlp.down_proj": (hidden, inner),
    }
    norms = {
        "hidden_norm": hidden,
        "norm": hidden,
        "layers.0.input_layernorm": hidden,
        "layers.0.post_attention_layernorm": hidden,
        "layers.0.self_attn.q_norm": head,
        "layers.0.self_attn.k_norm": head,
    }
    torch.manual_seed(0)
    weights = {f"{name}.weight": torch.randn(shape) * 0.02 for name, shape in matrices.items()}
    weights |= {f"{name}.weight": torch.ones(size) for name, size in norms.items()}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, str(folder / "model.safetensors"))
    return folder
