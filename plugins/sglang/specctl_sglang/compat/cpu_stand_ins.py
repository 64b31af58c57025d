"""Stand-ins for what SGLang's CPU path expects of ``sgl_kernel``, which has no build on the package index.

Used on a machine without a GPU only, for tests and the demo: plain torch, written for clarity. With the real
package in place nothing of this is installed, apart from what ``patches.CPU`` wraps.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from types import ModuleType
from typing import Any, ClassVar

import torch

__all__ = ["install", "wrap_create_backend", "wrap_resolve_spec_extras"]

logger = logging.getLogger("sglang.specctl")
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_NOWHERE = -1
_WIDTH_ONLY = 1
"""Of SGLang's modes of a mask: what drafts see of each other, which is the one on a CPU."""
_library: torch.library.Library | None = None
"""Definitions end with the object that made them."""


def install() -> None:
    """Once in each process, before SGLang is imported."""
    global _library
    if importlib.util.find_spec("sgl_kernel") is not None or _library is not None:
        return
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _OPERATORS:
        # torchvision from the package index needs CUDA to load these, and its import asks for them.
        if not hasattr(torch.ops.torchvision, schema.split("(")[0]):
            _library.define(schema)
    sys.meta_path.append(_StandInFinder())
    logger.warning(
        "specctl: sgl_kernel is not installed; stand-ins in plain torch take its place (slow, for tests)"
    )


def wrap_create_backend(original: Any) -> Any:
    return _around(_draft_backend, original)


def wrap_resolve_spec_extras(original: Any) -> Any:
    return _around(_resolve_spec_extras, original)


def _around(ours: Any, original: Any) -> Any:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return ours(original, *args, **kwargs)

    return wrapped


def _resolve_spec_extras(original: Any, future_map: Any, batch: Any) -> None:
    if batch.spec_info is None or not future_map.need_topk:
        original(future_map, batch)
        return
    rows = batch.spec_info.future_indices
    for name in ("topk_p", "topk_index", "hidden_states"):
        buffer = getattr(future_map, f"{name}_buf")
        if buffer is not None:
            setattr(batch.spec_info, name, buffer[rows])
    batch.spec_info.bonus_tokens = future_map.output_tokens_buf[rows]


def _draft_backend(
    original: Any, factory: Any, backend_name: str, known: Any, *more: Any, **named: Any
) -> Any:
    """Reason: a draft model of several steps has no attention on torch_native, where SGLang says that EAGLE
    is not supported."""
    from sglang.srt.runtime_context import attention_backends

    prefill, decode = attention_backends()
    is_decode = backend_name == "decode_attention_backend"
    wanted = factory.draft_attn_backend or (decode if is_decode else prefill)
    if wanted != "torch_native":
        return original(factory, backend_name, known, *more, **named)
    from specctl_sglang.compat import cpu_draft_attention

    made = cpu_draft_attention.for_steps if is_decode else cpu_draft_attention.for_extends
    return made(factory)


class _StandIn(ModuleType):
    """A module of ``sgl_kernel``: what is not there fails when it is called, by its name."""

    __path__: ClassVar[list[str]] = []  # type: ignore[misc]  # a package, of no files

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _STAND_INS.get(name)
        if found is not None:
            return found

        def absent(*_args: Any, **_kwargs: Any) -> Any:
            raise NotImplementedError(f"{self.__name__}.{name} has no stand-in on a CPU")

        return absent


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        # Of other parts SGLang imports what it can do without.
        if fullname not in ("sgl_kernel", "sgl_kernel.speculative"):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, target: torch.Tensor, source: torch.Tensor
) -> None:
    """Moves the rows ``source`` to ``target`` in every buffer; addresses uint64[n], bytes a row int64[n]."""
    import ctypes

    rows = list(zip(target.tolist(), source.tolist(), strict=True))
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        kept = [ctypes.string_at(address + old * stride, stride) for _, old in rows]
        for (new, _), row in zip(rows, kept, strict=True):
            ctypes.memmove(address + new * stride, row, stride)


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
) -> None:
    """Places of new tokens, request after request, into each request's row of ``req_to_token``."""
    at = 0
    for row, start, end in _rows(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[at : at + end - start].to(req_to_token.dtype)
        at += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
) -> None:
    """The other way round: what stands in the rows, one request after the other."""
    at = 0
    for row, start, end in _rows(req_pool_indices, start_offset, end_offset):
        out_cache_loc[at : at + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)
        at += end - start


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Places of the accepted tokens, packed; the rest stays as it is."""
    kept = accept_index.flatten()
    kept = kept[kept >= 0].long()
    accept_out_cache_loc[: kept.numel()] = out_cache_loc[kept]


def verify_tree_greedy_cpu(
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Follows the target's own tokens down the tree, as the operator of the same name does on a GPU."""
    for i in range(candidates.shape[0]):
        tokens, wanted = candidates[i].tolist(), target_predict[i].tolist()
        place, child, sibling = retrive_index[i].tolist(), retrive_next_token[i], retrive_next_sibling[i]
        node, depth = 0, 0
        accept_index[i, 0] = place[0]
        while depth + 1 < accept_index.shape[1]:
            following = int(child[node])
            while following != -1 and tokens[following] != wanted[node]:
                following = int(sibling[following])
            if following == -1:
                break
            predicts[place[node]] = wanted[node]
            depth += 1
            accept_index[i, depth] = place[following]
            node = following
        predicts[place[node]] = wanted[node]
        accept_token_num[i] = depth


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, stride: int
) -> None:
    """The last emitted token of each request; accept_tokens has a row of ``stride`` for each."""
    last = accept_lens.long() - 1 + stride * torch.arange(len(accept_lens))
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Where a draft model writes: behind each request's text, one branch after the other."""
    places = seq_lens.long()[:, None] + torch.arange(topk * num_steps)
    out_cache_loc.copy_(req_to_token[req_pool_indices.long()[:, None], places].flatten())


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    _depth: int,
    width: int,
    mask_mode: int,
) -> None:
    """EAGLE's tree of the best drafts: who is whose parent, as links, positions and a mask of width x width.

    selected_index int64[n, width - 1]: a draft's number among all that were made, topk to a parent;
    parent_list int64[n, .]: the number of each parent, by its rank.
    """
    if mask_mode != _WIDTH_ONLY:
        raise NotImplementedError(f"masks of the mode {mask_mode} have no stand-in on a CPU")
    requests = len(verified_seq_len)
    masks = tree_mask[: requests * width * width].view(requests, width, width)
    masks.copy_(torch.eye(width, dtype=torch.bool).expand(requests, width, width))
    masks[:, :, 0] = True
    depths = torch.zeros((requests, width), dtype=torch.int64)
    retrive_index.copy_(torch.arange(requests * width).view(requests, width))
    for i in range(requests):
        made = selected_index[i].tolist()
        above = [int(parent_list[i, number // topk]) if number >= topk else None for number in made]
        place = {None: 0, **{number: node for node, number in enumerate(made, start=1)}}
        # Of equal scores a child may have been kept without its parent; it is linked from nowhere.
        parents = [place.get(one, _NOWHERE) for one in above]
        for node, parent in enumerate(parents, start=1):
            depths[i, node] = depths[i, max(parent, 0)] + 1
            masks[i, node] |= masks[i, max(parent, 0)]
        _link(parents, retrive_next_token[i], retrive_next_sibling[i])
    positions.copy_((depths + verified_seq_len[:, None]).flatten())


def _link(parents: list[int], next_token: torch.Tensor, next_sibling: torch.Tensor) -> None:
    """Of the nodes from 1 on: each row's first child, and each child's next sibling."""
    for node, parent in reversed(list(enumerate(parents, start=1))):
        if parent != _NOWHERE:
            next_sibling[node] = next_token[parent]
            next_token[parent] = node


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    width: int,
) -> None:
    """Positions and links of stock NGRAM's trees from who is whose ancestor: bool [batch, width, width]."""
    order = torch.arange(width)
    ancestors = tree_mask[: batch_size * width * width].view(batch_size, width, width) & (
        order[None, :] < order[:, None]
    )
    positions.view(batch_size, width).copy_(ancestors.sum(-1) + verified_seq_len[:, None])
    retrive_index.copy_(torch.arange(batch_size * width).view(batch_size, width))
    parents = torch.where(ancestors, order, -1).amax(-1)
    has_child = ancestors.any(1)
    first_child = torch.where(ancestors, order[:, None], width).amin(1)
    retrive_next_token.copy_(torch.where(has_child, first_child, -1))
    later = (parents[:, :, None] == parents[:, None, :]) & (order[:, None] > order[None, :])
    sibling = torch.where(later, order[:, None], width).amin(1)
    retrive_next_sibling.copy_(torch.where((parents >= 0) & (sibling < width), sibling, -1))


def _rows(indices: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> Any:
    return zip(indices.tolist(), starts.tolist(), ends.tolist(), strict=True)


_STAND_INS: dict[str, Any] = {
    made.__name__: made
    for made in (
        assign_draft_cache_locs_contiguous_cpu,
        assign_extend_cache_locs_cpu,
        assign_req_to_token_pool_cpu,
        build_tree_kernel_efficient_cpu,
        copy_all_layer_kv_cache_cpu,
        fill_accept_out_cache_loc_cpu,
        fill_bonus_tokens_cpu,
        reconstruct_indices_from_tree_mask,
        verify_tree_greedy_cpu,
    )
}
