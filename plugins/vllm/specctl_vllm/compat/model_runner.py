"""The worker's part on the V1 model runner: our proposers, shorter drafts from stock ones, times.

The CPU's runner inherits from the patched one. Stock ``suffix`` asserts that the number of drafts never
changes and takes the engine down; parallel drafting returns the wrong shape for fewer tokens.
"""

from __future__ import annotations

import functools
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specctl.engine.guard import GUARD
from specctl_vllm.compat.draft_seconds import DraftClock, report_with, watch_first_pass
from specctl_vllm.compat.rank_agreement import AGREEMENT
from specctl_vllm.compat.resting_head import resting_head_of
from specctl_vllm.proposers.hybrid import Found, HybridProposer
from specctl_vllm.report import Failures, WorkerReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

__all__ = [
    "wrap_execute_model",
    "wrap_initialize_kv_cache",
    "wrap_propose_draft_token_ids",
    "wrap_sample_tokens",
    "wrap_take_draft_token_ids",
]


def _proposer_of_ours(runner: Any) -> Any:
    drafter = getattr(runner, "drafter", None)
    return drafter if hasattr(drafter, "propose_step") else getattr(runner, "specctl_hybrid", None)


def wrap_initialize_kv_cache(original: Any) -> Any:
    """The suffix index beside a draft head, compiled before the first request."""

    @functools.wraps(original)
    def initialize_kv_cache(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if hasattr(self, "drafter") and not hasattr(self, "specctl_hybrid"):
            self.specctl_hybrid = HybridProposer(self.vllm_config)
            self.specctl_hybrid.load_model()

    return initialize_kv_cache


def wrap_execute_model(original: Any) -> Any:
    @functools.wraps(original)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        proposer = _proposer_of_ours(self)
        if proposer is not None:
            _note_step(proposer, scheduler_output)
        resting = getattr(self, "specctl_resting_head", None)
        if resting is not None:
            for ids in (
                scheduler_output.finished_req_ids,
                scheduler_output.scheduled_cached_reqs.resumed_req_ids,
            ):
                GUARD.call("head.drop", None, resting.drop, ids)
        wish = getattr(scheduler_output, "specctl_wish", None)
        if wish is not None:
            AGREEMENT.begin(wish)
        started_s = time.perf_counter()
        output = original(self, scheduler_output, *args, **kwargs)
        self.specctl_verify_s = time.perf_counter() - started_s
        return output

    return execute_model


def _note_step(proposer: Any, scheduler_output: Any) -> None:
    GUARD.call("finish", None, proposer.finish, scheduler_output.finished_req_ids)
    namespaces = getattr(scheduler_output, "specctl_namespaces", {})
    unshared = getattr(scheduler_output, "specctl_unshared", ())
    new_requests = scheduler_output.scheduled_new_reqs
    if not GUARD.ran("note_requests", proposer.note_requests, namespaces, unshared, new_requests):
        proposer.isolate(new.req_id for new in new_requests)


def wrap_sample_tokens(original: Any) -> Any:
    @functools.wraps(original)
    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        started_s = time.perf_counter()
        clock = self.specctl_clock = DraftClock(self.device.type == "cuda")
        earlier_drafts = self._draft_token_ids
        output = original(self, *args, **kwargs)
        forward_s = getattr(self, "specctl_verify_s", 0.0)
        self.specctl_verify_s = forward_s + time.perf_counter() - started_s - clock.whole_s()
        if hasattr(output, "get_output"):
            GUARD.call("clock.report", None, report_with, output, clock)
        else:
            GUARD.call("carry_drafts", None, _carry_drafts, self, output, earlier_drafts)
        return output

    return sample_tokens


def _carry_drafts(runner: Any, output: Any, earlier_drafts: Any) -> None:
    """With the step's tokens, where the step has made drafts that nobody has to wait for."""
    drafts: list[list[int]] | torch.Tensor | None = runner._draft_token_ids
    if drafts is None or drafts is earlier_drafts:
        return
    if isinstance(drafts, list) or drafts.device.type == "cpu":
        output.specctl_drafts = runner.take_draft_token_ids()


def wrap_propose_draft_token_ids(original: Any) -> Any:
    @functools.wraps(original)
    def propose_draft_token_ids(
        self: Any, scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if AGREEMENT.agreed is not None:
            scheduler_output.num_spec_tokens_to_schedule = AGREEMENT.agreed.num_speculative_tokens
        wanted = scheduler_output.num_spec_tokens_to_schedule
        proposer = _proposer_of_ours(self)
        if proposer is not None and not GUARD.is_resting:
            # A new request's prompt is read here: that is no part of drafting for the next step.
            GUARD.call("note_batch", None, proposer.note_batch, self.input_batch, len(sampled_token_ids))
        GUARD.call("watch_first_pass", None, watch_first_pass, self)
        clock = self.specctl_clock
        GUARD.call("clock.mark", None, clock.mark)
        stock = functools.partial(original, self, scheduler_output, sampled_token_ids, *args, **kwargs)
        hybrid = getattr(self, "specctl_hybrid", None)
        if hybrid is not None and not GUARD.is_resting:
            return _propose_hybrid(stock, self, hybrid, scheduler_output, sampled_token_ids)
        if proposer is not None and hybrid is None:
            drafts: Any = [[] for _ in sampled_token_ids]
            if not GUARD.is_resting:
                least = getattr(scheduler_output, "specctl_min_token_prob", None)
                given = self.input_batch, sampled_token_ids, wanted, least
                drafts = GUARD.call("propose_step", drafts, proposer.propose_step, *given)
        else:
            drafts = _propose_stock(stock, self, scheduler_output, sampled_token_ids, wanted)
        GUARD.call("clock.mark", None, clock.mark)
        return drafts

    return propose_draft_token_ids


def _propose_hybrid(
    stock: Any, runner: Any, hybrid: HybridProposer, scheduler_output: Any, sampled_token_ids: Any
) -> Any:
    wanted = scheduler_output.num_spec_tokens_to_schedule
    resting = GUARD.call("head.rests", None, resting_head_of, runner)
    given = runner, hybrid, scheduler_output, sampled_token_ids, resting is not None
    found = GUARD.call("hybrid.find", None, _find, *given)
    asked = wanted if found is None or found.choice.head_runs else 0
    ids = list(runner.input_batch.req_ids[: len(sampled_token_ids)])
    if resting is not None and found is not None and found.is_asleep:
        resting.drop(ids)
        drafts = sampled_token_ids[:, :0]
    else:
        if resting is not None:
            resting.begin(ids, None if found is None else found.rejected)
        with _scheduled(scheduler_output, asked):
            drafts = _propose_stock(stock, runner, scheduler_output, sampled_token_ids, asked)
    clock = runner.specctl_clock
    GUARD.call("clock.mark", None, clock.mark)
    if found is None:
        return drafts
    head_s = clock.seconds(with_first_pass=resting is not None)
    GUARD.call("hybrid.timed", None, hybrid.timed, found, head_s)
    of_head = drafts.tolist()
    return GUARD.call("hybrid.merged", of_head, hybrid.merged, found, of_head)


def _find(
    runner: Any, hybrid: HybridProposer, scheduler_output: Any, sampled_token_ids: Any, can_rest: bool
) -> Found:
    verified, wanted = (
        scheduler_output.scheduled_spec_decode_tokens,
        scheduler_output.num_spec_tokens_to_schedule,
    )
    return hybrid.find(runner.input_batch, _emitted(runner, sampled_token_ids), verified, wanted, can_rest)


def _emitted(runner: Any, sampled_token_ids: torch.Tensor) -> list[list[int]]:
    """integer[R, K + 1], -1 behind the last one, as vLLM itself reads it a little later. Rows of prompts that
    are not at their end sample nothing that counts."""
    sampled = sampled_token_ids.cpu().numpy()
    counts = (sampled >= 0) & (sampled < runner.input_batch.vocab_size)
    counts &= ~runner.discard_request_mask.np[: sampled.shape[0], None]
    return [row[valid].tolist() for row, valid in zip(sampled, counts, strict=True)]


def _propose_stock(
    propose: Any, runner: Any, scheduler_output: Any, sampled_token_ids: Any, wanted: int
) -> Any:
    config = runner.speculative_config
    full = config.num_speculative_tokens
    if wanted == full:
        return propose()
    if config.method == "ngram" and wanted == 0:
        return [[] for _ in sampled_token_ids]
    if config.method == "suffix":
        # At 0 the draft is still made and dropped: that call also feeds the suffix cache.
        with _drafter_limit(runner.drafter, wanted or full), _scheduled(scheduler_output, wanted or full):
            drafts = propose()
        return drafts if wanted else [[] for _ in drafts]
    if config.parallel_drafting and wanted:
        with _scheduled(scheduler_output, full):
            drafts = propose()
        return drafts[:, :wanted].contiguous()
    return propose()


@contextmanager
def _drafter_limit(drafter: Any, num_speculative_tokens: int) -> Iterator[None]:
    kept = drafter.num_speculative_tokens
    drafter.num_speculative_tokens = num_speculative_tokens
    try:
        yield
    finally:
        drafter.num_speculative_tokens = kept


@contextmanager
def _scheduled(scheduler_output: Any, num_speculative_tokens: int) -> Iterator[None]:
    kept = scheduler_output.num_spec_tokens_to_schedule
    scheduler_output.num_spec_tokens_to_schedule = num_speculative_tokens
    try:
        yield
    finally:
        scheduler_output.num_spec_tokens_to_schedule = kept


def wrap_take_draft_token_ids(original: Any) -> Any:
    @functools.wraps(original)
    def take_draft_token_ids(self: Any) -> Any:
        drafts = original(self)
        if drafts is not None:
            proposer = _proposer_of_ours(self)
            is_ours = proposer is not None
            # Suffix drafts alone do not tell how a hybrid's would have fared.
            has_shadow = is_ours and proposer is self.drafter
            drafts.specctl = WorkerReport(
                draft_s=GUARD.call("clock.seconds", 0.0, self.specctl_clock.seconds),
                verify_s=self.specctl_verify_s,
                shadow=GUARD.call("shadow_counts", None, proposer.shadow_counts) if has_shadow else None,
                proposer=GUARD.call("stats", None, proposer.stats) if is_ours else None,
                failures=Failures.here(),
                agreed=AGREEMENT.agreed,
            )
        return drafts

    return take_draft_token_ids
