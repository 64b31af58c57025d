import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from benchmarks.gpu.widen import Shape, Widening, kind_of, widen  # noqa: E402

LOGITS_ATOL = 1e-4
"""float32 sums over rows of other lengths round differently."""
SMALL = Shape(hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=60, output=60)
WIDE = Shape(hidden=256, heads=16, kv_heads=4, head_dim=8, ffn=80, vocab=90, output=90)
CONFIG = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 60,
    "rms_norm_eps": 1e-2,
}


def random_tensor(generator, *shape):
    return torch.randn(shape, generator=generator) / shape[-1] ** 0.5


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def targets(request, tmp_path_factory):
    """A tiny random Llama in bf16 and its wide twin, both loaded in float32."""
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **CONFIG,
        num_hidden_layers=2,
        tie_word_embeddings=request.param,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config)
    for name, value in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(value, 0.5, 1.5)
    model.bfloat16().save_pretrained(folder / "small")
    widen(folder / "small", folder / "wide", WIDE, layers=5)
    return [
        transformers.LlamaForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
        for name in ("small", "wide")
    ]


def test_a_wide_target_has_the_small_ones_logits_and_zeros(targets):
    small, wide = targets
    ids = torch.randint(0, 60, (3, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, got = small(ids).logits, wide(ids).logits
    torch.testing.assert_close(got[..., :60], expected, atol=LOGITS_ATOL, rtol=0)
    assert not got[..., 60:].any()
    assert expected.std() > 0.1


def test_a_wide_target_writes_the_small_ones_greedy_text(targets):
    ids = torch.randint(0, 60, (4, 12), generator=torch.Generator().manual_seed(2))
    texts = [
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
        for model in targets
    ]
    assert torch.equal(*texts)


def test_a_wide_target_has_the_whole_shape(targets):
    wide = targets[1]
    assert wide.config.num_hidden_layers == 5
    assert wide.lm_head.weight.shape == wide.model.embed_tokens.weight.shape == (90, 256)
    last = wide.model.layers[4]
    assert last.self_attn.q_proj.weight.any()
    assert not last.self_attn.o_proj.weight.any()
    assert not last.mlp.down_proj.weight.any()


def head_weights(kind):
    generator = torch.Generator().manual_seed(3)
    layers = {"eagle3": ["midlayer."], "peagle": ["layers.0.", "layers.1."]}[kind]
    found = {"fc.weight": random_tensor(generator, 32, 96), "norm.weight": torch.full((32,), 1.3)}
    for i, layer in enumerate(layers):
        inputs = 64 if i == 0 else 32
        for name, rows in (("q", 32), ("k", 16), ("v", 16)):
            found[f"{layer}self_attn.{name}_proj.weight"] = random_tensor(generator, rows, inputs)
        found[f"{layer}self_attn.o_proj.weight"] = random_tensor(generator, 32, 32)
        for name, rows, columns in (("gate", 48, 32), ("up", 48, 32), ("down", 32, 48)):
            found[f"{layer}mlp.{name}_proj.weight"] = random_tensor(generator, rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm", *(["hidden_norm"] if i == 0 else [])):
            found[f"{layer}{name}.weight"] = 0.5 + torch.rand(32, generator=generator)
    if kind == "peagle":
        return found | {
            "mask_hidden": random_tensor(generator, 1, 1, 96),
            "lm_head.weight": random_tensor(generator, 60, 32),
        }
    d2t = torch.arange(20)  # draft id i stands for token 2 * i
    return found | {
        "d2t": d2t,
        "t2d": torch.isin(torch.arange(60), 2 * d2t),
        "lm_head.weight": random_tensor(generator, 20, 32),
    }


def rms_norm(x, weight, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def attention(weights, layer, x, config):
    """Causal, without rotation: positions do not meet the hidden size."""
    heads, groups, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    q, k, v = (x @ weights[f"{layer}self_attn.{name}_proj.weight"].T for name in "qkv")
    q = q.view(-1, heads, dim).transpose(0, 1)
    k, v = (
        part.view(-1, groups, dim).transpose(0, 1).repeat_interleave(heads // groups, 0) for part in (k, v)
    )
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(0, 1).reshape(len(x), -1) @ weights[f"{layer}self_attn.o_proj.weight"].T


def head_logits(weights, config, embeds, target_hidden):
    """EAGLE-3's head: embeds [n, hidden], target_hidden [n, 3 * hidden] -> logits [n, rows of lm_head]."""
    eps = config["rms_norm_eps"]
    hidden = target_hidden @ weights["fc.weight"].T
    layers = ["midlayer."] if "d2t" in weights else ["layers.0.", "layers.1."]
    for i, layer in enumerate(layers):
        x = rms_norm(embeds if i == 0 else hidden, weights[f"{layer}input_layernorm.weight"], eps)
        if i == 0:
            x = torch.cat([x, rms_norm(hidden, weights[f"{layer}hidden_norm.weight"], eps)], -1)
        hidden = hidden + attention(weights, layer, x, config)
        x = rms_norm(hidden, weights[f"{layer}post_attention_layernorm.weight"], eps)
        gate, up, down = (weights[f"{layer}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        hidden = hidden + (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
    return rms_norm(hidden, weights["norm.weight"], eps) @ weights["lm_head.weight"].T


def wide_state(x):
    """[n, 32] -> [n, 256]: two copies and zeros."""
    return torch.cat([x, x, torch.zeros(len(x), 256 - 64)], -1)


@pytest.fixture(params=["eagle3", "peagle"])
def heads(request, tmp_path):
    """Weights and config of a random head and of its wide twin."""
    small = tmp_path / "small"
    small.mkdir()
    config = CONFIG | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1 if request.param == "eagle3" else 2,
        "draft_vocab_size": 20 if request.param == "eagle3" else 60,
        **({"ptd_token_id": 6} if request.param == "peagle" else {}),
    }
    (small / "config.json").write_text(json.dumps(config))
    save_file(head_weights(request.param), small / "model.safetensors")
    wide = Shape(**{**vars(WIDE), "output": 30})
    widen(small, tmp_path / "wide", wide, aux_layers=(0, 1, 2))
    assert kind_of(config) == request.param
    return [
        (
            load_file(tmp_path / name / "model.safetensors"),
            json.loads((tmp_path / name / "config.json").read_text()),
        )
        for name in ("small", "wide")
    ]


def test_a_wide_head_has_the_small_ones_logits(heads):
    (small, small_config), (wide, wide_config) = heads
    generator = torch.Generator().manual_seed(4)
    embeds = torch.randn(9, 32, generator=generator)
    states = list(torch.randn(3, 9, 32, generator=generator))
    if "mask_hidden" in small:
        for state, mask in zip(states, small["mask_hidden"].view(3, 32), strict=True):
            state[-4:] = mask
    wide_states = torch.cat([wide_state(state) for state in states], -1)
    if "mask_hidden" in wide:
        assert torch.equal(wide["mask_hidden"].view(-1), wide_states[-1])
    expected = head_logits(small, small_config, embeds, torch.cat(states, -1))
    got = head_logits(wide, wide_config, wide_state(embeds), wide_states)
    rows = len(small["lm_head.weight"])
    torch.testing.assert_close(got[:, :rows], expected, atol=LOGITS_ATOL, rtol=0)
    assert got.shape == (9, 30 if "d2t" in wide else 90)
    assert not got[:, rows:].any()
    assert expected.std() > 0.1
    assert wide_config["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    # SGLang adds 1.
    assert wide_config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 0, 1]


def test_extra_draft_tokens_point_at_distinct_unused_tokens(heads):
    wide, config = heads[1]
    assert config["draft_vocab_size"] == len(wide["lm_head.weight"])
    if "d2t" not in wide:
        return
    targets = torch.arange(30) + wide["d2t"]
    assert targets.tolist() == [*range(0, 40, 2), *range(60, 70)]
    assert wide["t2d"].nonzero().flatten().tolist() == targets.tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden": 96},
        {"hidden": 16},
        {"head_dim": 16},
        {"heads": 4, "kv_heads": 4},
        {"ffn": 40},
        {"vocab": 40},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_shape_that_cannot_hold_the_small_model_is_refused(changes):
    with pytest.raises(ValueError, match="expected"):
        Widening(SMALL, Shape(**{**vars(WIDE), **changes}))
