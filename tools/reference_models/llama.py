"""A small Llama in plain torch, float32; parameters are named as in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["SHAPE", "Attention", "Layer", "Shape", "Target", "rotations", "turned"]


@dataclass(frozen=True)
class Shape:
    vocab_size: int = 4096
    draft_vocab_size: int = 2048
    hidden_size: int = 128
    intermediate_size: int = 256
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 4096

    @property
    def state_layers(self) -> tuple[int, int, int]:
        """The layers whose inputs a draft head reads: what vLLM and SGLang take by default."""
        layers = self.num_hidden_layers
        return 2, layers // 2, layers - 3


SHAPE = Shape()


def rotations(positions: Tensor, shape: Shape = SHAPE) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions, [..., head_dim / 2]."""
    exponents = torch.arange(0, shape.head_dim, 2) / shape.head_dim
    angles = positions[..., None] / shape.rope_theta**exponents
    return angles.cos(), angles.sin()


def turned(rows: Tensor, at: tuple[Tensor, Tensor]) -> Tensor:
    """Rows [..., head_dim], turned to their positions."""
    first, second = rows.chunk(2, dim=-1)
    cosines, sines = at
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


class Attention(nn.Module):
    def __init__(self, shape: Shape, input_size: int) -> None:
        super().__init__()
        self.shape = shape
        rows, memory = (
            heads * shape.head_dim for heads in (shape.num_attention_heads, shape.num_key_value_heads)
        )
        self.q_proj = nn.Linear(input_size, rows, bias=False)
        self.k_proj = nn.Linear(input_size, memory, bias=False)
        self.v_proj = nn.Linear(input_size, memory, bias=False)
        self.o_proj = nn.Linear(rows, shape.hidden_size, bias=False)

    def rows(self, inputs: Tensor, at: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, query heads, tokens, head_dim]."""
        batch, tokens, _ = inputs.shape
        shape = self.shape
        queries, keys, values = (
            layer(inputs).view(batch, tokens, -1, shape.head_dim).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        each = shape.num_attention_heads // shape.num_key_value_heads
        keys, values = (part.repeat_interleave(each, dim=1) for part in (turned(keys, at), values))
        return turned(queries, at), keys, values

    def joined(self, rows: Tensor) -> Tensor:
        """[batch, heads, tokens, head_dim] -> [batch, tokens, hidden_size]."""
        return self.o_proj(rows.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(inputs)) * self.up_proj(inputs))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, shape: Shape, input_size: int | None = None) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape, input_size or shape.hidden_size)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def fed(self, hidden: Tensor) -> Tensor:
        return hidden + self.mlp(self.post_attention_layernorm(hidden))  # type: ignore[no-any-return]

    def forward(self, hidden: Tensor, at: tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        """mask: bool[tokens, tokens], which rows a row sees; None: itself and those before it."""
        rows = self.self_attn.rows(self.input_layernorm(hidden), at)
        seen = functional.scaled_dot_product_attention(*rows, attn_mask=mask, is_causal=mask is None)
        return self.fed(hidden + self.self_attn.joined(seen))


class Target(nn.Module):
    def __init__(self, shape: Shape = SHAPE) -> None:
        super().__init__()
        self.shape = shape
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.model.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.model.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.num_hidden_layers) ** 0.5 if last else 0.02)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """int64[batch, tokens] -> logits [batch, tokens, vocab] and the states that heads read."""
        hidden = self.model.embed_tokens(tokens)  # type: ignore[operator]
        at = rotations(torch.arange(tokens.shape[1]), self.shape)
        states = {}
        for number, layer in enumerate(self.model.layers):  # type: ignore[arg-type]
            states[number] = hidden
            hidden = layer(hidden, at)
        read = torch.cat([states[number] for number in self.shape.state_layers], dim=-1)
        return self.logits(hidden), read

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(self.model.norm(hidden), self.model.embed_tokens.weight)  # type: ignore[operator, union-attr, arg-type]

    @torch.inference_mode()
    def written(self, prompts: Tensor, tokens: int, temperatures: Tensor) -> Tensor:
        """Prompts int64[batch, n] with their continuations; a temperature of 0 is greedy."""
        batch, known = prompts.shape
        at = rotations(torch.arange(known + tokens), self.shape)
        shape = (batch, self.shape.num_attention_heads, known + tokens, self.shape.head_dim)
        memory = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(self.shape.num_hidden_layers)]
        text, start = prompts, 0
        for end in range(known, known + tokens):
            hidden = self.model.embed_tokens(text[:, start:end])  # type: ignore[operator]
            for layer, (keys, values) in zip(self.model.layers, memory, strict=True):  # type: ignore[arg-type]
                rows = layer.self_attn.rows(
                    layer.input_layernorm(hidden), (at[0][start:end], at[1][start:end])
                )
                keys[:, :, start:end], values[:, :, start:end] = rows[1:]
                seen = functional.scaled_dot_product_attention(
                    rows[0], keys[:, :, :end], values[:, :, :end], is_causal=start == 0
                )
                hidden = layer.fed(hidden + layer.self_attn.joined(seen))
            logits = self.logits(hidden[:, -1])
            noise = -torch.empty_like(logits).exponential_().log()
            chosen = (logits + temperatures[:, None] * noise).argmax(dim=-1, keepdim=True)
            text, start = torch.cat([text, chosen], dim=1), end
        return text
