"""What takes the place of a GPU, a target and a sampler in benchmarks.sglang_step_host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.speculative import ngram_worker
from specctl_sglang.compat import steered_worker

__all__ = ["CLOCK", "stand_in", "wait_for"]


class Clock:
    """Stands while something runs that on a GPU the host does not do."""

    def __init__(self) -> None:
        self._left_out_s, self.stands = 0.0, False

    def now_s(self) -> float:
        return time.perf_counter() - self._left_out_s

    def leaves_out(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            started_s, self.stands = time.perf_counter(), True
            try:
                return work(*args, **kwargs)
            finally:
                self._left_out_s, self.stands = self._left_out_s + time.perf_counter() - started_s, False

        return run


CLOCK = Clock()


def wait_for(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def _verified(drafts: Any, batch: Any, _logits: Any, _grammar_mask: Any = None, **_more: Any) -> Any:
    """The greedy verification of trees against the texts. Raises RuntimeError where place 0 is not the last
    emitted token: then the step that was prepared is not the one that follows."""
    requests, width = len(batch.reqs), drafts.draft_token_num
    tokens = drafts.draft_token.view(requests, width).tolist()
    children, siblings = drafts.retrieve_next_token.tolist(), drafts.retrieve_next_sibling.tolist()
    predict = torch.zeros(requests * width, dtype=torch.int32)
    index = torch.full((requests, width), -1, dtype=torch.int32)
    counts = []
    for i, request in enumerate(batch.reqs):
        if tokens[i][0] != request.text[request.emitted - 1]:
            raise RuntimeError(f"{request.rid}: expected its last token first, got {tokens[i][0]}")
        place, count = 0, 0
        while place != -1:
            wanted = request.text[request.emitted + count]
            predict[i * width + place], index[i, count] = wanted, i * width + place
            count, place = count + 1, children[i][place]
            while place != -1 and tokens[i][place] != wanted:
                place = siblings[i][place]
        counts.append(count)
        request.emitted += count
    found = predict, torch.tensor(counts, dtype=torch.int32), index
    return tuple(one.to(batch.device) for one in found)


def _cache_slots(batch_size: int, draft_token_num: int, **_more: Any) -> torch.Tensor:
    """One launch, as SGLang's Triton kernel."""
    return torch.empty(batch_size * draft_token_num, dtype=torch.int64).zero_()


def stand_in(device: str) -> None:
    """In the place of what a GPU does, or what is the same for both arms. Once in the process."""
    ngram_worker.eagle_sample = CLOCK.leaves_out(_verified)
    for name in ("move_accept_tokens_to_target_kvcache", "commit_mamba_states_after_verify"):
        setattr(ngram_worker, name, lambda *_: None)
    for module in (ngram_worker, steered_worker):
        module.prepare_mamba_track_for_verify = lambda *_: None
    if torch.device(device).type == "cpu":
        _stand_in_for_kernels()


def _stand_in_for_kernels() -> None:
    torch.set_num_threads(1)
    name = "reconstruct_indices_from_tree_mask"
    if not hasattr(ngram_worker, name):  # from SGLang 0.5.23 on
        name += "_func"
    real = CLOCK.leaves_out(getattr(ngram_worker, name))

    def reconstructed(mask: torch.Tensor, lengths: torch.Tensor, positions: torch.Tensor, *more: Any) -> None:
        positions.zero_()  # one launch
        real(mask, lengths, positions, *more)

    setattr(ngram_worker, name, reconstructed)
    ngram_worker.assign_extend_cache_locs_func = _cache_slots
    ngram_worker._is_cpu = False
    for module in (ngram_worker, steered_worker):
        module.record_stream_for_v2_verify = lambda *_: None
