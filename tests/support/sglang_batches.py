"""SGLang's batches of draft trees by their attributes, without SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from support.tree_batches import links_of, shaped

__all__ = ["TOP_K_ALL", "NgramVerifyInput", "batch_of", "sampling_of", "trees"]

TOP_K_ALL = 1 << 30


class NgramVerifyInput(SimpleNamespace):
    """By the name that the plugin knows."""


def trees(
    requests: int, rows: int, vocabulary: int, *, shape: str = "random", depth: int | None = None
) -> NgramVerifyInput:
    """Random trees; every third request has half of its rows as padding, as short drafts do."""
    links, depths = [], []
    for request in range(requests):
        parents = shaped(shape, rows)
        if request % 3 == 2:
            parents[rows // 2 + 1 :] = [-1] * (rows - rows // 2 - 1)
        links.append(links_of(parents))
        of: list[int] = []
        for parent in parents:
            of.append(of[parent] + 1 if parent >= 0 else 0)
        depths.append(of)
    before = torch.randint(1, 1000, (requests, 1))
    next_token, next_sibling = (torch.tensor([one[i] for one in links]).view(requests, rows) for i in (0, 1))
    return NgramVerifyInput(
        draft_token=torch.randint(0, vocabulary, (requests * rows,)),
        draft_token_num=rows,
        positions=(before + torch.tensor(depths).view(requests, rows)).flatten(),
        retrieve_index=torch.arange(requests * rows).view(requests, rows),
        retrieve_next_token=next_token,
        retrieve_next_sibling=next_sibling,
        max_tree_depth=rows if depth is None else depth,
        tree_topk=-1,
    )


def sampling_of(requests: int, **options: Any) -> SimpleNamespace:
    """SamplingBatchInfo; options as lists by SGLang's names: temperature, top_k, top_p, min_p."""
    defaults = {"temperature": 1.0, "top_k": TOP_K_ALL, "top_p": 1.0, "min_p": 0.0}
    by_name = {name: options.get(name, [default] * requests) for name, default in defaults.items()}
    return SimpleNamespace(
        temperatures=torch.tensor(by_name["temperature"], dtype=torch.float32).view(-1, 1),
        top_ks=torch.tensor(by_name["top_k"], dtype=torch.int32),
        top_ps=torch.tensor(by_name["top_p"], dtype=torch.float32),
        min_ps=torch.tensor(by_name["min_p"], dtype=torch.float32),
        is_all_greedy=all(k <= 1 for k in by_name["top_k"]),
        is_any_greedy=any(k <= 1 for k in by_name["top_k"]),
        need_top_k_sampling=any(k != TOP_K_ALL for k in by_name["top_k"]),
        need_top_p_sampling=any(p != 1.0 for p in by_name["top_p"]),
        need_min_p_sampling=any(p > 0 for p in by_name["min_p"]),
        sampling_seed=options.get("seeds"),
        grammar_mask=None,
        penalizer_orchestrator=None,
        acc_additive_penalties=None,
        acc_scaling_penalties=None,
        logit_bias=None,
        has_custom_logit_processor=False,
        return_sampling_masks=[False] * requests,
        by_name=by_name,
    )


def batch_of(sampling: SimpleNamespace) -> SimpleNamespace:
    """ScheduleBatch."""
    by_name = sampling.by_name
    requests = [
        SimpleNamespace(sampling_params=SimpleNamespace(min_p=min_p, top_p=top_p))
        for min_p, top_p in zip(by_name["min_p"], by_name["top_p"], strict=True)
    ]
    return SimpleNamespace(
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        sampling_info=sampling,
        reqs=requests,
        return_logprob=False,
        has_grammar=False,
    )
