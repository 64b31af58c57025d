"""Draft heads of a target in plain torch: EAGLE-3 (arXiv 2503.01840) and P-EAGLE (arXiv 2602.01469).

Row p of a head reads the embedding of token p + 1 beside the target's states of token p; what it writes is
token p + 2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.reference_models.llama import Layer, Shape, rotations

__all__ = ["Eagle3", "PEagle"]


class FirstLayer(Layer):
    """Attends over [embedding, state], each normalised; the state alone is carried on."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 2 * shape.hidden_size)
        self.hidden_norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)

    def both(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)


class Eagle3(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(3 * shape.hidden_size, shape.hidden_size, bias=False)
        self.midlayer = FirstLayer(shape)
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False)

    def forward(self, embedded: Tensor, states: Tensor, steps: int) -> list[Tensor]:
        """Logits of each of so many drafts, [batch, rows - step, draft_vocab_size].

        As at serving time: draft number k of row p reads the true tokens up to p + 1 + k, the target's states
        up to p, and its own states after them.
        embedded: of the tokens one further, [batch, rows, hidden_size].
        states: [batch, rows, 3 * hidden_size].
        """
        rows = embedded.shape[1]
        hidden, logits, own = self.fc(states), [], []
        unseen = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        for step in range(steps):
            left = rows - step
            hidden = hidden[:, :left]
            at = rotations(torch.arange(step, rows), self.shape)
            attention = self.midlayer.self_attn
            queries, keys, values = attention.rows(self.midlayer.both(embedded[:, step:], hidden), at)
            if step == 0:
                first = keys, values
            else:
                own.append((keys, values))
            own = [(keys[:, :, :left], values[:, :, :left]) for keys, values in own]
            scores = [(queries @ first[0][:, :, :left].mT).masked_fill(unseen[:left, :left], -torch.inf)]
            scores += [(queries * keys).sum(-1, keepdim=True) for keys, _ in own]
            shares = (torch.cat(scores, dim=-1) * self.shape.head_dim**-0.5).softmax(-1)
            seen = shares[..., :left] @ first[1][:, :, :left]
            for number, (_, values) in enumerate(own):
                seen = seen + shares[..., left + number, None] * values
            hidden = self.midlayer.fed(hidden + attention.joined(seen))
            logits.append(self.lm_head(self.norm(hidden)))
        return logits


class PEagle(nn.Module):
    def __init__(self, shape: Shape, layers: int = 2) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(3 * shape.hidden_size, shape.hidden_size, bias=False)
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, 3 * shape.hidden_size) * 0.1)
        self.layers = nn.ModuleList([FirstLayer(shape), *(Layer(shape) for _ in range(layers - 1))])
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

    def forward(
        self, embedded: Tensor, states: Tensor, masked: Tensor, anchors: Tensor, drafts: int
    ) -> Tensor:
        """Logits of the drafts of each anchor, [batch, anchors, drafts, vocab_size], all from one pass.

        The first draft of an anchor is its own row's; the others are written in mask slots behind it, which
        see the true rows up to the anchor and the anchor's slots before them.
        masked: the embedding of the mask token, [hidden_size]; anchors: int64, rows of ``embedded``.
        """
        batch, rows, size = embedded.shape
        slots = len(anchors) * (drafts - 1)
        depths = torch.arange(1, drafts).repeat(len(anchors))
        starts = anchors.repeat_interleave(drafts - 1)
        hidden = self.fc(torch.cat([states, self.mask_hidden.expand(batch, slots, -1)], dim=1))
        inputs = torch.cat([embedded, masked.expand(batch, slots, size)], dim=1)
        start_of = torch.cat([torch.arange(rows), starts])
        depth_of = torch.cat([torch.zeros(rows, dtype=torch.int64), depths])
        true = torch.arange(rows)[None, :] <= start_of[:, None]
        same = (start_of[:, None] == starts[None, :]) & (depth_of[:, None] >= depths[None, :])
        mask = torch.cat([true, same], dim=1)
        at = rotations(start_of + depth_of, self.shape)
        first, *others = self.layers
        seen = functional.scaled_dot_product_attention(
            *first.self_attn.rows(first.both(inputs, hidden), at), attn_mask=mask
        )
        hidden = first.fed(hidden + first.self_attn.joined(seen))
        for layer in others:
            hidden = layer(hidden, at, mask)
        behind = hidden[:, rows:].view(batch, len(anchors), drafts - 1, size)
        drafted = torch.cat([hidden[:, anchors, None], behind], dim=2)
        return self.lm_head(self.norm(drafted))  # type: ignore[no-any-return]
