"""A P-EAGLE head (arXiv 2602.01469) as a model of SGLang: its EAGLE-3 head, with the mask state and layers as
vLLM reads the same checkpoints.

A pass that drafts gives drafts, not logits: the token that each of the last K rows of a request finds most
probable. So a captured pass holds the choice too, and SGLang's own graph runner can be used as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from sglang.srt.layers.linear import QKVParallelLinear
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessorOutput
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
from sglang.srt.runtime_context import get_spec

from specctl_sglang.peagle_head import TOKEN_MAP_KEY

__all__ = ["SpecctlPEagle"]

_LAYER_NORM = re.compile(r"layers\.(\d+)\.(input_layernorm|hidden_norm)\.")


class SpecctlPEagle(LlamaForCausalLMEagle3):
    """config: as ``specctl_sglang.peagle_head`` writes it."""

    hot_token_id: Any

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__(config, quant_config, prefix)
        self.mask_token_id: int = config.ptd_token_id
        self.register_buffer("mask_hidden", torch.zeros(self.model.fc.in_features), persistent=False)
        self._drafts: int = get_spec().speculative_num_steps
        self._has_own_embedding = False
        if getattr(config, "attention_bias", False):
            self._add_bias(quant_config)

    def _add_bias(self, quant_config: Any) -> None:
        """SGLang's EAGLE-3 layers have none."""
        hidden = self.config.hidden_size
        for number, layer in enumerate(self.model.layers):
            attention = layer.self_attn
            attention.qkv_proj = QKVParallelLinear(
                hidden if number else 2 * hidden,
                attention.head_dim,
                attention.total_num_heads,
                attention.total_num_kv_heads,
                bias=True,
                quant_config=quant_config,
                prefix=f"model.layers.{number}.self_attn.qkv_proj",
            )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        super().load_weights(self._as_named_here(weights))
        if self.hot_token_id is not None:
            self.hot_token_id = self.hot_token_id.to(self.lm_head.weight.device)
        if getattr(self.config, "norm_before_residual", False):
            first = self.model.layers[0]
            self.model.fc = torch.nn.Sequential(self.model.fc, first.hidden_norm)
            first.hidden_norm = torch.nn.Identity()

    def _as_named_here(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Behind the first layer SGLang's hidden_norm has the place of the checkpoint's input_layernorm. With
        a token map they are those of a head with such a vocabulary of its own."""
        chosen = getattr(self.config, TOKEN_MAP_KEY, None)
        ids = None if chosen is None else torch.from_numpy(np.load(chosen))
        if ids is not None:
            yield "d2t", ids - torch.arange(len(ids))
        for name, weight in weights:
            if ids is not None and name.endswith("lm_head.weight"):
                weight = weight[ids]
            if "mask_hidden" in name:
                self.mask_hidden.copy_(weight.flatten())
                continue
            self._has_own_embedding |= "embed_tokens" in name
            norm = _LAYER_NORM.search(name)
            if norm is not None and int(norm[1]) > 0:
                if norm[2] == "hidden_norm":
                    continue
                name = name.replace("input_layernorm", "hidden_norm")
            yield name, weight

    def set_embed(self, embed: torch.Tensor) -> None:
        """The target's, unless the head was trained with one of its own."""
        if not self._has_own_embedding:
            super().set_embed(embed)

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        **more: Any,
    ) -> LogitsProcessorOutput:
        """``next_token_logits`` int64[requests, K] are drafts, ids of the target, from row
        spec_info.select_index of each request and the K - 1 behind it. Without such rows: SGLang's."""
        first = getattr(forward_batch.spec_info, "select_index", None)
        if first is None:
            return super().forward(input_ids, positions, forward_batch, input_embeds, **more)
        hidden, _ = self.model(input_ids, positions, forward_batch, input_embeds)
        rows = (first[:, None] + torch.arange(self._drafts, device=first.device)).flatten()
        # SGLang captures, and pads batches, with the last row of a request as its first.
        rows = rows.clamp(max=hidden.shape[0] - 1)
        metadata = LogitsMetadata.from_forward_batch(forward_batch)
        logits = self.logits_processor._get_logits(
            hidden[rows], self.lm_head, metadata, use_logits_buffer=False
        )
        drafts = torch.argmax(logits, dim=-1)
        if self.hot_token_id is not None:
            drafts = self.hot_token_id[drafts]
        drafts = drafts.view(-1, self._drafts)
        return LogitsProcessorOutput(next_token_logits=drafts, hidden_states=drafts)
