"""Torch operations of a step beside the target's forward pass, SPECCTL_SUFFIX and stock NGRAM; no engine.

In SGLang's environment, on the CPU (``ran_by_sglang``). A decode batch of the overlap scheduler,
step after step: both workers and both relays between steps are the real ones, in SGLang's order of events;
target, sampler and kernels of the device are stood in for, whose operations are not counted. What is counted
is a launch or a copy on a GPU, before and after the forward pass, from the moment that the step before has
come back: the GPU idles meanwhile. Knows SGLang's workers and relays by the attributes that they read.
"""

# SGLang asks for sgl_kernel when it is imported.
# ruff: noqa: E402

from __future__ import annotations

import json
import os
import random
import statistics
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specctl_sglang.compat import cpu_stand_ins

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
cpu_stand_ins.install()

import torch
from sglang.srt.managers.overlap_utils import FutureMap, RelayPayload, resolve_forward_inputs
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative import ngram_worker
from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from specctl_sglang.compat import steered_worker
from specctl_sglang.compat.host_relay import HostRelayMap
from specctl_sglang.compat.suffix_algorithm import SuffixAlgorithm
from specctl_sglang.compat.suffix_worker import SuffixWorker
from specctl_sglang.compat.verify_block import VerifyBlock
from specctl_sglang.control.steering import Steering
from specctl_sglang.proposers.suffix import SuffixDrafts
from torch.utils._python_dispatch import TorchDispatchMode

from specctl.contract.capabilities import Capabilities
from specctl.engine.options import SuffixOptions

_ARMS = ("stock NGRAM", "SPECCTL_SUFFIX")
_PROMPT_TOKENS, _OUTPUT_TOKENS, _ROW_TOKENS = 96, 300, 512
_WARM_UP_STEPS = 4
_PREPARED = (0, 2, 4, 8)
_NO_LAUNCH = {"aten::empty", "aten::empty_strided", "aten::new_empty", "aten::empty_like", "aten::detach"}
_DEVICE = "cpu"


class _NotCounted:
    """What on a GPU the host does not do."""

    def __init__(self) -> None:
        self.runs = False

    def __call__(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.runs = True
            try:
                return work(*args, **kwargs)
            finally:
                self.runs = False

        return run


NOT_COUNTED = _NotCounted()


class Counted(TorchDispatchMode):
    """Operations that are a launch or a copy on a GPU, by whether the forward pass was before them."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step, self.before_forward, self.after_forward = step, 0, 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not (NOT_COUNTED.runs or func.is_view or func._schema.name in _NO_LAUNCH):
            if self._step.is_after_forward:
                self.after_forward += 1
            elif self._step.has_waited:
                self.before_forward += 1
        return func(*args, **(kwargs or {}))


class _Request:
    """A text that copies passages of its prompt. SGLang's own attributes of a request."""

    def __init__(self, number: int) -> None:
        generator = random.Random(number)
        prompt = [generator.randrange(1_000, 30_000) for _ in range(_PROMPT_TOKENS)]
        self.text: list[int] = []
        while len(self.text) < _OUTPUT_TOKENS + 16:
            start = generator.randrange(_PROMPT_TOKENS - 48)
            self.text += prompt[start : start + generator.randrange(6, 48)]
        self.rid = f"request-{number}"
        self.origin_input_ids = self.origin_input_ids_unpadded = array("q", prompt)
        self.output_ids = array("q", self.text[:1])
        self.emitted = 1
        """On the device; the output has them a step later."""
        self.lora_id = self.extra_key = self.finished_len = None
        self.sampling_params = SamplingParams(temperature=0.0)


def _greedy() -> Any:
    return SimpleNamespace(
        is_all_greedy=True, has_custom_logit_processor=False,
        acc_additive_penalties=None, acc_scaling_penalties=None,
    )  # fmt: skip


class _Batch(SimpleNamespace):
    def grammar_needs_sync(self) -> bool:
        return False


class _Copies:
    """The event behind a step's copies to the host, which the host reaches before they are there."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        self._step.waited()


class Step:
    """``run`` is one turn of the scheduler's loop, as far as a worker makes a difference to it."""

    def __init__(self, is_ours: bool, requests: int, width: int) -> None:
        self.requests = [_Request(number) for number in range(requests)]
        self._rows = torch.arange(1, requests + 1, device=_DEVICE)
        self._is_ours, self._full = is_ours, width
        self.width, self.is_after_forward, self.has_waited = width, False, True
        self.emitted_tokens = self.request_steps = 0
        self._result: Any = None
        table = torch.arange((requests + 1) * _ROW_TOKENS, dtype=torch.int32, device=_DEVICE)
        pool = SimpleNamespace(req_to_token=table.view(-1, _ROW_TOKENS), req_generation=None)
        algorithm = SuffixAlgorithm("SPECCTL_SUFFIX", None, supports_overlap=True)
        if is_ours:
            self._map = HostRelayMap(_DEVICE, algorithm, pool)
        else:
            self._map = FutureMap(_DEVICE, SpeculativeAlgorithm.NGRAM, pool)
        self._worker = self._made_worker()
        self._batch = _Batch(
            reqs=self.requests, req_pool_indices=self._rows, req_pool_indices_cpu=self._rows.cpu().clone(),
            seq_lens=None, seq_lens_cpu=None, seq_lens_sum=None, spec_info=None, input_ids=None,
            forward_mode=ForwardMode.EXTEND, sampling_info=_greedy(),
            has_grammar=False, return_logprob=False, req_to_token_pool=pool, out_cache_loc=None,
            enable_overlap=True, prefill_input_ids_cpu=None, spec_algorithm=self._map.spec_algo,
            device=_DEVICE, extend_num_tokens=None,
        )  # fmt: skip
        self._after_prompts()

    def _made_worker(self) -> Any:
        kind, count = SuffixWorker if self._is_ours else ngram_worker.NGRAMWorker, len(self.requests)
        worker = kind.__new__(kind)
        target = SimpleNamespace(
            forward_batch_generation=self._forward,
            model_runner=SimpleNamespace(tp_rank=0, watermark_state=None),
        )
        for name, value in {
            "_target_worker": target, "model_runner": target.model_runner, "tp_rank": 0, "page_size": 1,
            "enable_overlap": True, "draft_token_num": self._full, "speculative_num_draft_tokens": self._full,
            "max_trie_depth": 18, "device": _DEVICE, "adaptive_controller": None,
            "_prev_decode_rids": set(), "grammar_tree_host": None, "max_batch_size": count,
            "token_to_kv_pool_allocator": None,
        }.items():  # fmt: skip
            setattr(worker, name, value)
        if not self._is_ours:
            worker.ngram_corpus = NgramCorpus(
                max_trie_depth=18, min_bfs_breadth=1, max_bfs_breadth=10, draft_token_num=self._full
            )
            worker._init_preallocated_tensors()
            return worker
        worker._full_width = self._full
        worker._tp_group = SimpleNamespace(world_size=1, rank_in_group=0)
        worker._states = SimpleNamespace(keys=_PREPARED, activate=lambda _: None, stats=dict)
        worker._proposer = SuffixDrafts(SuffixOptions(index_bytes=2**22), count, _ROW_TOKENS, self._full - 1)
        # As on a GPU, where masks tell of contexts too.
        worker._block = VerifyBlock(_DEVICE, count, self._full, has_context=True)
        worker.host_relay = self._map.specctl_relay
        worker.specctl = Steering(_CAPABILITIES, _view(count), worker)
        return worker

    def _after_prompts(self) -> None:
        count = len(self.requests)
        lengths = torch.full((count,), _PROMPT_TOKENS, dtype=torch.int64)
        first = torch.tensor([request.text[0] for request in self.requests])
        tokens = torch.zeros((count, self._full), dtype=torch.int32, device=_DEVICE)
        tokens[:, 0] = first.to(_DEVICE)
        ones = torch.ones(count, dtype=torch.int32)
        self._map.publish(self._rows, lengths.to(_DEVICE))
        carried = NgramVerifyInput(
            draft_token_num=self._full, new_seq_lens=lengths.to(_DEVICE),
            accept_tokens=tokens.flatten(), accept_lens=ones.to(_DEVICE),
        )  # fmt: skip
        self._map.stash(self._rows, RelayPayload.from_ngram(carried))
        carried.future_indices = self._rows
        self._batch.spec_info, self._batch.seq_lens_cpu = carried, lengths
        if self._is_ours:
            result = SimpleNamespace(copy_done=_Copies(self), next_token_ids=first, accept_lens=ones)
            self._worker.launched(self._batch, result)
        self._batch.forward_mode = ForwardMode.DECODE

    def goes_on(self) -> bool:
        return all(request.emitted < _OUTPUT_TOKENS for request in self.requests)

    def waited(self) -> None:
        self.has_waited = True

    def _forward(self, batch: Any, **_more: Any) -> Any:
        self.is_after_forward = True
        self.width = batch.input_ids.numel() // len(batch.reqs)
        tokens = None
        if not batch.forward_mode.is_target_verify():
            tokens = torch.tensor([request.text[request.emitted] for request in batch.reqs])
            tokens = tokens.to(_DEVICE)
            for request in batch.reqs:
                request.emitted += 1
        return SimpleNamespace(
            logits_output=SimpleNamespace(next_token_logits=None, next_token_logprobs=None),
            can_run_cuda_graph=True, next_token_ids=tokens, accept_lens=None,
        )  # fmt: skip

    def run(self) -> None:
        batch, relay, steering = self._batch, self._map, getattr(self._worker, "specctl", None)
        before = sum(request.emitted for request in self.requests)
        self.is_after_forward = False
        self._threads_come_to_rest()
        # Stock NGRAM waits for the step before as soon as it begins with the next.
        self.has_waited = not self._is_ours
        if steering is not None:
            steering.before_run(batch)
        relay.resolve_seq_lens_cpu(batch)
        resolve_forward_inputs(batch, relay)
        kept = dict(vars(batch))
        result = self._worker.forward_batch_generation(
            batch, on_publish=lambda lengths: relay.publish(self._rows, lengths)
        )
        vars(batch).update(kept)
        relay.stash(self._rows, RelayPayload.from_ngram(result.next_draft_input))
        batch.input_ids, batch.spec_info = None, result.next_draft_input
        batch.spec_info.future_indices = self._rows
        self._copied(result)
        if steering is not None:
            self._worker.launched(batch, result)
            steering.after_run(result)
        self._processed(steering)
        self._result = result, [request.emitted for request in self.requests]
        self.emitted_tokens += sum(request.emitted for request in self.requests) - before
        self.request_steps += len(self.requests)

    @NOT_COUNTED
    def _copied(self, result: Any) -> None:
        """As the scheduler has it done on a stream of its own."""
        result.next_token_ids, result.accept_lens = result.next_token_ids.cpu(), result.accept_lens.cpu()
        result.copy_done = _Copies(self)

    def _threads_come_to_rest(self) -> None:
        """What either worker indexes beside the step is done long before a forward pass is."""
        if self._is_ours:
            self._worker._proposer._index.settle()
        else:
            self._worker.ngram_corpus.synchronize()

    def _processed(self, steering: Any) -> None:
        """The step before reaches its requests."""
        if self._result is None:
            return
        result, emitted = self._result
        if steering is not None:
            steering.before_result(result)
        for request, number in zip(self.requests, emitted, strict=True):
            request.output_ids.extend(request.text[len(request.output_ids) : number])
        result.num_correct_drafts_per_req_cpu = (result.accept_lens - 1).tolist()
        if steering is not None:
            steering.after_result(result)


def _view(count: int) -> Any:
    return SimpleNamespace(
        running=lambda: count, waiting=lambda: 0, kv_cache_used_ratio=lambda: 0.1, verified_batches=dict
    )


_CAPABILITIES = Capabilities(
    contract_version=1, engine="sglang", engine_version="0", plugin_version="0", boot_id="b", model="m",
    method="specctl_suffix", controllable=True, num_speculative_tokens_legal=_PREPARED,
    decode_batch_max=256, context_max_tokens=4096, decode_batch_buckets=(1, 16, 64, 256), rows_max=8,
    lease_max_s=60.0, has_shadow_acceptance=False,
)  # fmt: skip


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


def stand_in() -> None:
    """In the place of what a GPU does, or what is the same for both arms."""
    ngram_worker.eagle_sample = NOT_COUNTED(_verified)
    for name in ("move_accept_tokens_to_target_kvcache", "commit_mamba_states_after_verify"):
        setattr(ngram_worker, name, lambda *_: None)
    for module in (ngram_worker, steered_worker):
        module.prepare_mamba_track_for_verify = lambda *_: None
    _stand_in_for_kernels()


def _stand_in_for_kernels() -> None:
    torch.set_num_threads(1)
    name = "reconstruct_indices_from_tree_mask"
    if not hasattr(ngram_worker, name):  # from SGLang 0.5.23 on
        name += "_func"
    real = NOT_COUNTED(getattr(ngram_worker, name))

    def reconstructed(mask: torch.Tensor, lengths: torch.Tensor, positions: torch.Tensor, *more: Any) -> None:
        positions.zero_()  # one launch
        real(mask, lengths, positions, *more)

    setattr(ngram_worker, name, reconstructed)
    ngram_worker.assign_extend_cache_locs_func = _cache_slots
    ngram_worker._is_cpu = False
    for module in (ngram_worker, steered_worker):
        module.record_stream_for_v2_verify = lambda *_: None


def counted(arm: str, requests: int, width: int) -> dict[str, float]:
    """Medians of the steps that verify at full width, views and allocations left out."""
    step, found = Step(arm == _ARMS[1], requests, width), []
    while step.goes_on():
        with Counted(step) as counts:
            step.run()
        if step.width == width:
            found.append((counts.before_forward, counts.after_forward))
    before, after = (int(statistics.median(part)) for part in zip(*found[_WARM_UP_STEPS:], strict=True))
    tokens = step.emitted_tokens / step.request_steps
    return {"before the forward": before, "after it": after, "tokens a step": round(tokens, 2)}


def main() -> None:
    work = json.loads(sys.argv[1])
    stand_in()
    found = {
        str(requests): {arm: counted(arm, requests, work["width"]) for arm in _ARMS}
        for requests in work["requests"]
    }
    Path(work["out"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
