"""Models and heads for tests alone: a DFlash head of random weights, never right, so that only what surrounds
a draft is tested; a P-EAGLE head with all that its formats allow and the reference head does not have; a
model with a head of its own, one whose attention sees a window, and an adapter."""

import json
from pathlib import Path
from typing import Any

from testing.random_model import copy_tokenizer, write_random_model

LAYERS_READ = (1, 4, 6)
"""Of the target, whose hidden states the head reads."""


_TINY_MTP = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "model_type": "ernie4_5_moe",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 16384,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "num_nextn_predict_layers": 1,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_intermediate_size": 128,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""vLLM fills its weights at random."""


_OF_IMAGES = {
    "<|mask|>": "<image>",
    "<|system|>": "<fake_token_around_image>",
    "<|assistant|>": "<end_of_utterance>",
}
"""What the target's tokens are called instead."""
_IMAGE_TEMPLATE = (
    "<|bos|>{% for message in messages %}{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endfor %}"
)


def write_tiny_mtp(target: Path, folder: Path, expert_layers: int = 0) -> Path:
    """``folder``, with a model that has a head of its own, without weights: for ``--load-format dummy``.

    ``expert_layers``: so many of its two layers, from the last one on, are mixtures of four experts.
    """
    folder.mkdir()
    layers = _TINY_MTP["num_hidden_layers"]
    # Where no layer is one of experts, the range begins behind its end.
    experts = {"moe_layer_start_index": layers - expert_layers, "moe_layer_end_index": layers - 1}
    (folder / "config.json").write_text(json.dumps({**_TINY_MTP, **experts}), encoding="utf-8")
    return copy_tokenizer(target, folder)


def write_sliding_gemma(target: Path, folder: Path) -> Path:
    """``folder``, with a Gemma 3 of random weights and the target's tokens, whose window is shorter than the
    tests' prompts. Greedy, it repeats a token some times and then goes on to another, as its window says."""
    from transformers import Gemma3TextConfig

    shape = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "query_pre_attn_scalar": 128,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "initializer_range": 0.06,
    }

    def change(model: Any) -> None:
        """The layers outweigh the token itself, and the logits are far apart."""
        model.model.embed_tokens.weight.mul_(0.5)
        model.model.norm.weight.fill_(4.0)
        for layer in model.model.layers:
            layer.post_attention_layernorm.weight.fill_(1.0)

    return write_random_model(Gemma3TextConfig, shape, target, folder, change)


def write_random_dflash(target: Path, folder: Path) -> Path:
    """``folder``, with the config and the weights of a head of one layer in the target's shape."""
    import torch

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
    return write_checkpoint(folder, config, weights)


def write_random_lora(target: Path, folder: Path) -> Path:
    """``folder``, with an adapter of the target's queries and values, of rank 4, that changes its answers."""
    import torch

    shape = json.loads((target / "config.json").read_text(encoding="utf-8"))
    rank, hidden = 4, shape["hidden_size"]
    sizes = {"q_proj": shape["num_attention_heads"], "v_proj": shape["num_key_value_heads"]}
    torch.manual_seed(0)
    weights = {}
    for layer in range(shape["num_hidden_layers"]):
        for name, heads in sizes.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(rank, hidden) * 0.05
            weights[f"{place}.lora_B.weight"] = torch.randn(heads * shape["head_dim"], rank) * 0.05
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 16, "bias": "none"}
    config |= {"target_modules": list(sizes), "base_model_name_or_path": str(target)}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    _save(weights, folder / "adapter_model.safetensors")
    return folder


def write_idefics3(target: Path, folder: Path) -> Path:
    """``folder``, with the target's weights behind a vision tower of random ones: the four tokens of an image
    change the answers. Of such models it is one that the engines load without torchvision."""
    import torch
    from transformers import (
        AutoTokenizer,
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
        LlamaConfig,
        LlamaForCausalLM,
    )

    folder.mkdir(parents=True)
    for path in copy_tokenizer(target, folder).iterdir():
        text = path.read_text(encoding="utf-8")
        for before, after in _OF_IMAGES.items():
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    side, patch, scale = 32, 8, 2
    tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = Idefics3ForConditionalGeneration(
        Idefics3Config(
            text_config=LlamaConfig.from_pretrained(target, dtype="float32"),
            vision_config={**tower, "image_size": side, "patch_size": patch},
            scale_factor=scale,
            image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
    )
    language = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    model.model.text_model.load_state_dict(language.model.state_dict())
    model.save_pretrained(folder)
    size = {"longest_edge": side}
    images = Idefics3ImageProcessorPil(size=size, max_image_size=size, do_image_splitting=False)
    tokens = (side // patch // scale) ** 2
    Idefics3Processor(images, tokenizer, tokens, _IMAGE_TEMPLATE).save_pretrained(folder)
    return folder


def write_speculators_peagle(source: Path, folder: Path) -> Path:
    """``folder``, with the head ``source`` in the format of speculators: every other token of its vocabulary,
    biases, other layers read, the first residual after its norm. What it drafts is worth less."""
    import torch
    from safetensors.torch import load_file

    shape = json.loads((source / "config.json").read_text(encoding="utf-8"))
    weights = load_file(str(source / "model.safetensors"))
    own = ("architectures", "draft_vocab_size", "ptd_token_id")
    ids = list(range(0, shape["vocab_size"], 2))
    weights |= _with_vocabulary(weights, ids, shape["vocab_size"])
    torch.manual_seed(0)
    for name in [name for name in weights if name.endswith("_proj.weight") and "self_attn" in name]:
        bias = torch.randn(weights[name].shape[0]) * 0.02
        weights[name.replace("weight", "bias")] = bias.to(weights[name].dtype)
    config = {
        "speculators_model_type": "peagle",
        "mask_token_id": shape["ptd_token_id"],
        "draft_vocab_size": len(ids),
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 4, 6],
        "transformer_layer_config": {
            **{name: value for name, value in shape.items() if name not in own},
            "attention_bias": True,
        },
    }
    return write_checkpoint(folder, config, weights)


def write_with_vocabulary(source: Path, folder: Path, ids: list[int]) -> Path:
    """``folder``, with the P-EAGLE head ``source`` that can draft these tokens of the target alone."""
    from safetensors.torch import load_file

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    weights = load_file(str(source / "model.safetensors"))
    weights |= _with_vocabulary(weights, ids, config["vocab_size"])
    return write_checkpoint(folder, config | {"draft_vocab_size": len(ids)}, weights)


def _with_vocabulary(weights: dict[str, Any], ids: list[int], vocab_size: int) -> dict[str, Any]:
    """The tensors by which a head can draft these ids of the target alone."""
    import torch

    chosen = torch.tensor(ids)
    is_chosen = torch.zeros(vocab_size, dtype=torch.bool)
    is_chosen[chosen] = True
    return {
        "lm_head.weight": weights["lm_head.weight"][chosen].contiguous(),
        "d2t": chosen - torch.arange(len(ids)),
        "t2d": is_chosen,
    }


def write_checkpoint(folder: Path, config: dict[str, Any], weights: dict[str, Any]) -> Path:
    """``folder``, with a config and its tensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _save(weights, folder / "model.safetensors")
    return folder


def _save(weights: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    save_file(weights, str(path))
