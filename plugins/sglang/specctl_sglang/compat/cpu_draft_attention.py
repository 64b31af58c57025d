"""Attention of a draft model in plain torch, for a machine without a GPU: SGLang's torch_native has none."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

__all__ = ["for_extends", "for_steps"]


def for_extends(factory: Any) -> TorchNativeAttnBackend:
    """For catching up with what was accepted: rows of new tokens after a text."""
    return TorchNativeAttnBackend(factory.draft_model_runner)


def for_steps(factory: Any) -> _Steps:
    """factory: SGLang's, which knows the draft model, its steps and its branches."""
    return _Steps(factory.draft_model_runner, factory.topk, factory.speculative_num_steps)


class _Steps:
    """One attention for each pass of a draft but the last, whose token needs none."""

    needs_cpu_seq_lens = True

    def __init__(self, runner: Any, branches: int, steps: int) -> None:
        self.attn_backends = [_Step(runner, branches, steps, at) for at in range(steps - 1)]

    def init_forward_metadata(self, batch: Any) -> None:
        """Nothing is planned ahead."""


class _Step(TorchNativeAttnBackend):
    """A branch sees its request's text and its own tokens behind it, for which it has ``steps`` places."""

    def __init__(self, runner: Any, branches: int, steps: int, at: int) -> None:
        super().__init__(runner)
        self._branches, self._steps, self._at = branches, steps, at

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None:
            pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        queries = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        rows = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices.long()]
        window = layer.sliding_window_size
        output = []
        for i, length in enumerate(forward_batch.seq_lens.tolist()):
            is_bounded = window is not None and window > -1
            first = max(length + self._at - window, 0) if is_bounded else 0
            for branch in range(self._branches):
                start = length + branch * self._steps
                seen = torch.cat([rows[i, first:length], rows[i, start : start + self._at + 1]]).long()
                query = queries[i * self._branches + branch]
                attended = torch.nn.functional.scaled_dot_product_attention(
                    query[None, :, None],
                    keys[seen].transpose(0, 1)[None].to(q.dtype),
                    values[seen].transpose(0, 1)[None].to(q.dtype),
                    scale=layer.scaling,
                    enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
                )
                output.append(attended.reshape(-1))
        return torch.stack(output)
