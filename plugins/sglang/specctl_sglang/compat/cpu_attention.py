"""Attention of the target in plain torch, for a machine without a GPU: SGLang's torch_native has none over
drafts, and none for batches that are filled up to the size of another rank's."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

__all__ = ["wrap_backend_init", "wrap_forward_extend"]


def wrap_backend_init(original: Any) -> Any:
    def init(backend: Any, *args: Any, **kwargs: Any) -> None:
        original(backend, *args, **kwargs)
        # Of the rows by which a batch is filled up to the size of the other ranks'.
        backend.get_cpu_graph_seq_len_fill_value = lambda: 1

    return init


def wrap_forward_extend(original: Any) -> Any:
    return partial(_forward_extend, original)


def _forward_extend(
    original: Any,
    backend: Any,
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    forward_batch: Any,
    *more: Any,
    **named: Any,
) -> Any:
    if not forward_batch.forward_mode.is_target_verify():
        if forward_batch.forward_mode.is_draft_extend_v2():
            # Rows that fill the batch up to the size of another rank's have less context than tokens.
            read = forward_batch.extend_prefix_lens + forward_batch.extend_seq_lens
            forward_batch.seq_lens = torch.maximum(forward_batch.seq_lens, read)
        return original(backend, q, k, v, layer, forward_batch, *more, **named)
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    places = KVWriteLoc(forward_batch.out_cache_loc, backend.swa_out_cache_loc)
    backend.token_to_kv_pool.set_kv_buffer(layer, places, k, v)
    keys = backend.token_to_kv_pool.get_key_buffer(layer.layer_id)
    values = backend.token_to_kv_pool.get_value_buffer(layer.layer_id)
    requests = forward_batch.batch_size
    queries = q.view(requests, -1, layer.tp_q_head_num, layer.qk_head_dim)
    width = queries.shape[1]
    trees = _seen_drafts(forward_batch.spec_info.custom_mask, layer, requests, width)
    rows = backend.req_to_token_pool.req_to_token[forward_batch.req_pool_indices]
    positions, window = forward_batch.positions.view(requests, width), layer.sliding_window_size
    output = []
    for i, length in enumerate(forward_batch.seq_lens.tolist()):
        seen = rows[i, : length + width].long()
        context = torch.ones((width, length), dtype=torch.bool)
        if window is not None and window > -1:
            context = torch.arange(length) >= positions[i][:, None] - window
        mask = torch.cat([context, trees[i]], dim=1)
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries[i].transpose(0, 1)[None],
            keys[seen].transpose(0, 1)[None].to(q.dtype),
            values[seen].transpose(0, 1)[None].to(q.dtype),
            attn_mask=mask,
            scale=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
        )
        output.append(attended[0].transpose(0, 1).reshape(width, -1))
    return torch.cat(output)


def _seen_drafts(mask: torch.Tensor | None, layer: Any, requests: int, width: int) -> torch.Tensor:
    """bool[n, w, w]; without a mask each sees those before it, or all of a block that is filled at once.

    Requests that the mask does not know fill a batch up to the size of another rank's.
    """
    if mask is not None:
        known = mask.view(-1, width, width)
        filling = known.new_ones((requests - len(known), width, width))
        return torch.cat([known, filling]) if len(filling) else known
    every = torch.ones((requests, width, width), dtype=torch.bool)
    return every if layer.attn_type.name == "ENCODER_ONLY" else every.tril()
