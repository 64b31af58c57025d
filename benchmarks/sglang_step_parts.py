"""A decode batch of SGLang's overlap scheduler, step after step, all of it real but the device's part.

For benchmarks.sglang_step_host. Knows SGLang's workers and relays by the attributes that they read.
"""

from __future__ import annotations

import random
import statistics
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.overlap_utils import FutureMap, RelayPayload, resolve_forward_inputs
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import ngram_worker
from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from specctl_sglang.compat.host_relay import HostRelayMap
from specctl_sglang.compat.suffix_algorithm import SuffixAlgorithm
from specctl_sglang.compat.suffix_worker import SuffixWorker
from specctl_sglang.compat.verify_block import VerifyBlock
from specctl_sglang.control.steering import Steering
from specctl_sglang.proposers.suffix import SuffixDrafts
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.sglang_step_stand_ins import CLOCK, wait_for
from specctl.contract.capabilities import Capabilities
from specctl.engine.options import SuffixOptions
from testing.provenance import summary

__all__ = ["Counted", "Step", "compared"]

_ARMS = ("stock NGRAM", "SPECCTL_SUFFIX")
_PARTS = ("while the step before runs", "until the forward", "after the forward", "telemetry")
_PROMPT_TOKENS, _OUTPUT_TOKENS, _ROW_TOKENS = 96, 300, 512
_WARM_UP_STEPS = 4
_OTHER_WORK = np.zeros(16 * 2**20, np.uint8)
"""Read between two steps: the caches hold then what a scheduler's other work leaves in them."""
_PREPARED = (0, 2, 4, 8)
_NO_LAUNCH = {"aten::empty", "aten::empty_strided", "aten::new_empty", "aten::empty_like", "aten::detach"}


class Counted(TorchDispatchMode):
    """Operations that are a launch or a copy on a GPU, by whether the forward pass was before them."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step, self.before_forward, self.after_forward = step, 0, 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not (CLOCK.stands or func.is_view or func._schema.name in _NO_LAUNCH):
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
        self.sampling_params = SimpleNamespace(custom_params=None)


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

    def __init__(self, is_ours: bool, requests: int, width: int, device: str) -> None:
        self.requests = [_Request(number) for number in range(requests)]
        self._rows = torch.arange(1, requests + 1, device=device)
        self._is_ours, self._full, self._device = is_ours, width, device
        self.width, self.is_after_forward, self.has_waited = width, False, True
        self.emitted_tokens = self.request_steps = 0
        self._waited_s = self._forward_s = 0.0
        self._result: Any = None
        table = torch.arange((requests + 1) * _ROW_TOKENS, dtype=torch.int32, device=device)
        pool = SimpleNamespace(req_to_token=table.view(-1, _ROW_TOKENS), req_generation=None)
        algorithm = SuffixAlgorithm("SPECCTL_SUFFIX", None, supports_overlap=True)
        if is_ours:
            self._map = HostRelayMap(device, algorithm, pool)
        else:
            self._map = FutureMap(device, SpeculativeAlgorithm.NGRAM, pool)
        self._worker = self._made_worker()
        self._batch = _Batch(
            reqs=self.requests, req_pool_indices=self._rows, req_pool_indices_cpu=self._rows.cpu().clone(),
            seq_lens=None, seq_lens_cpu=None, seq_lens_sum=None, spec_info=None, input_ids=None,
            forward_mode=ForwardMode.EXTEND, sampling_info=SimpleNamespace(is_all_greedy=True),
            has_grammar=False, return_logprob=False, req_to_token_pool=pool, out_cache_loc=None,
            enable_overlap=True, prefill_input_ids_cpu=None, spec_algorithm=self._map.spec_algo,
            device=device, extend_num_tokens=None,
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
            "max_trie_depth": 18, "device": self._device, "adaptive_controller": None,
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
        worker._block = VerifyBlock(self._device, count, self._full, has_context=True)
        worker.host_relay = self._map.specctl_relay
        worker.specctl = Steering(_CAPABILITIES, _view(count), worker)
        return worker

    def _after_prompts(self) -> None:
        count = len(self.requests)
        lengths = torch.full((count,), _PROMPT_TOKENS, dtype=torch.int64)
        first = torch.tensor([request.text[0] for request in self.requests])
        tokens = torch.zeros((count, self._full), dtype=torch.int32, device=self._device)
        tokens[:, 0] = first.to(self._device)
        ones = torch.ones(count, dtype=torch.int32)
        self._map.publish(self._rows, lengths.to(self._device))
        carried = NgramVerifyInput(
            draft_token_num=self._full, new_seq_lens=lengths.to(self._device),
            accept_tokens=tokens.flatten(), accept_lens=ones.to(self._device),
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
        self._waited_s, self.has_waited = CLOCK.now_s(), True

    def _forward(self, batch: Any, **_more: Any) -> Any:
        # A kernel that is not done yet keeps the forward pass waiting as well.
        wait_for(self._device)
        self._forward_s, self.is_after_forward = CLOCK.now_s(), True
        self.width = batch.input_ids.numel() // len(batch.reqs)
        tokens = None
        if not batch.forward_mode.is_target_verify():
            tokens = torch.tensor([request.text[request.emitted] for request in batch.reqs])
            tokens = tokens.to(self._device)
            for request in batch.reqs:
                request.emitted += 1
        return SimpleNamespace(
            logits_output=SimpleNamespace(next_token_logits=None, next_token_logprobs=None),
            can_run_cuda_graph=True, next_token_ids=tokens, accept_lens=None,
        )  # fmt: skip

    def run(self) -> tuple[float, ...]:
        """Seconds of each of _PARTS."""
        batch, relay, steering = self._batch, self._map, getattr(self._worker, "specctl", None)
        before = sum(request.emitted for request in self.requests)
        self.is_after_forward = False
        self._threads_come_to_rest()
        _OTHER_WORK.sum()
        started_s = CLOCK.now_s()
        # Stock NGRAM waits for the step before as soon as it begins with the next.
        self._waited_s, self.has_waited = started_s, not self._is_ours
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
        after_s = CLOCK.now_s() - self._forward_s
        told_s = self._processed(steering)
        self._result = result, [request.emitted for request in self.requests]
        self.emitted_tokens += sum(request.emitted for request in self.requests) - before
        self.request_steps += len(self.requests)
        return self._waited_s - started_s, self._forward_s - self._waited_s, after_s, told_s

    @CLOCK.leaves_out
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

    def _processed(self, steering: Any) -> float:
        """The step before reaches its requests; seconds of what steering does about it."""
        if self._result is None:
            return 0.0
        result, emitted = self._result
        started_s = CLOCK.now_s()
        if steering is not None:
            steering.before_result(result)
        before_s = CLOCK.now_s() - started_s
        for request, number in zip(self.requests, emitted, strict=True):
            request.output_ids.extend(request.text[len(request.output_ids) : number])
        result.num_correct_drafts_per_req_cpu = (result.accept_lens - 1).tolist()
        started_s = CLOCK.now_s()
        if steering is not None:
            steering.after_result(result)
        return before_s + CLOCK.now_s() - started_s


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


def timed(arm: str, requests: int, width: int, device: str) -> dict[str, Any]:
    """One round, until the first text ends: medians over steps, us by part, and tokens a step."""
    step = Step(arm == _ARMS[1], requests, width, device)
    rows = []
    while step.goes_on():
        rows.append(step.run())
    rows = rows[_WARM_UP_STEPS:]
    told: dict[str, Any] = {
        part: 1e6 * statistics.median(row[i] for row in rows) for i, part in enumerate(_PARTS)
    }
    return told | {"tokens a step": step.emitted_tokens / step.request_steps}


def counted(arm: str, requests: int, width: int, device: str) -> dict[str, int]:
    """Torch operations of a step that verifies at full width, views and allocations left out."""
    step, found = Step(arm == _ARMS[1], requests, width, device), []
    while step.goes_on():
        with Counted(step) as counts:
            step.run()
        if step.width == width:
            found.append((counts.before_forward, counts.after_forward))
    found = found[_WARM_UP_STEPS:]
    before, after = (int(statistics.median(part)) for part in zip(*found, strict=True))
    return {"before the forward": before, "after it": after}


def compared(requests: int, width: int, rounds: int, device: str) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in _ARMS}
    for _ in range(rounds):
        for arm in _ARMS:
            found[arm].append(timed(arm, requests, width, device))
    return {
        arm: {
            "us": {part: summary([one[part] for one in told]) for part in _PARTS},
            "torch operations": counted(arm, requests, width, device),
            "tokens a step": round(statistics.median(one["tokens a step"] for one in told), 2),
        }
        for arm, told in found.items()
    }
