"""Our verify kernels in the place of vLLM's on Model Runner V2.

With any sampled request in a batch vLLM copies all logits to float32, in parts of 1 GiB, and four kernels or
more read the copies. Ours read the logits once and copy none. Whatever they do not cover stays with vLLM,
batch by batch (``why_engine``). Grammars are in the logits already, and drafts that one forbids are -1: the
first of a request is verified with its token (``forbidden_drafts``).
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from specctl_kernels.row_law.given import Sampling
from specctl_kernels.verify_block import verify_block
from specctl_kernels.verify_greedy import verify_greedy
from specctl_kernels.verify_rejection import verify_rejection

from specctl.engine.guard import GUARD
from specctl_vllm.compat import verified_batches
from specctl_vllm.compat.forbidden_drafts import with_forbidden
from specctl_vllm.options import options_from_env

__all__ = ["Scope", "is_greedy", "scope", "why_engine", "wrap_verify_in_chunks"]

logger = logging.getLogger("vllm.specctl")
_PROCESSED = ("processed_logits", "processed_logprobs")
_NO_LOGPROBS = -1
_ANOTHER = "logits_processor"


@dataclass(slots=True)
class Scope:
    """Which batches ours may take; benchmarks change it while an engine runs."""

    greedy: bool
    sampled: bool
    block: bool = False
    """Sampled batches under ``rejection_sample_method: block`` too."""


scope = Scope(greedy=False, sampled=False)


def is_greedy(rejection: Any, requests: np.ndarray) -> bool:
    """Every request of a batch; requests: int[n], slots."""
    return not np.count_nonzero(rejection.sampler.sampling_states.temperature.np[requests])


def why_engine(
    rejection: Any,
    requests: np.ndarray,
    columns: int,
    draft_logits: Any,
    max_num_logprobs: int,
    is_all_greedy: bool,
) -> str | None:
    """Why a batch is vLLM's, None where it is ours. Asks the host's copies only, so nothing waits.

    requests: int[n], slots; columns: of the logits; max_num_logprobs: as vLLM counts it, -1 for none.
    """
    sampler = rejection.sampler
    if rejection.synthetic_conditional_rates is not None:
        return "synthetic_acceptance"
    if rejection.watermark_key is not None:
        return "watermark"
    if sampler.return_sampling_mask:
        return "sampling_mask"
    if max_num_logprobs != _NO_LOGPROBS and sampler.logprobs_mode in _PROCESSED:
        return "processed_logprobs"
    if np.count_nonzero(sampler.needs_logits_processing[requests]):
        reason = _processor_in_use(sampler, requests)
        if reason is not None:
            return reason
    if is_all_greedy:
        return None if scope.greedy else "not_asked"
    if not scope.sampled:
        return "sampled"
    if rejection.use_block_verification and not scope.block:
        return "block"
    if sampler.use_fp64_gumbel:
        return "fp64_gumbel"
    has_laws = draft_logits is not None
    return "draft_vocabulary" if has_laws and draft_logits.shape[2] != columns else None


def _processor_in_use(sampler: Any, requests: np.ndarray) -> str | None:
    """What changes the logits of a request, beside the options that our kernels read."""
    thinking = sampler.thinking_budget_state
    if thinking.enabled and np.count_nonzero(thinking.use_thinking_budget[requests]):
        return "thinking_budget"
    for processor in sampler.logits_processors:
        kind = type(processor).__name__
        if kind == "LogitBiasState":  # allowed tokens and min_tokens are in it
            reason, in_use = "logit_bias", processor.use_logit_bias
        elif kind == "PenaltiesState":
            reason, in_use = "penalties", processor.use_penalty
        elif kind == "BadWordsState":
            reason, in_use = "bad_words", processor.num_bad_words.np
        else:
            return _ANOTHER
        if np.count_nonzero(in_use[requests]):
            return reason
    return None


def wrap_verify_in_chunks(original: Any) -> Any:
    """Ours takes the batches that ``scope`` and ``why_engine`` leave to it."""
    options = options_from_env()
    if options is not None:
        scope.greedy = scope.sampled = options.verifies_itself()
        scope.block = options.verifies_blocks()

    @functools.wraps(original)
    def _verify_in_chunks(
        self: Any,
        logits: Any,
        input_batch: Any,
        draft_logits: Any,
        draft_sampled: Any,
        pos: Any,
        max_chunk_logits: int,
        max_num_logprobs: int,
        verify_draft_sampled: Any = None,
    ) -> Any:
        try:
            _compile_once(self, logits, draft_logits)
            slots = input_batch.idx_mapping_np
            greedy = is_greedy(self, slots)
            reason = why_engine(self, slots, logits.shape[1], draft_logits, max_num_logprobs, greedy)
            if reason is None:
                drafts = draft_sampled if verify_draft_sampled is None else verify_draft_sampled
                if drafts is not draft_sampled and draft_logits is not None:
                    drafts = with_forbidden(logits, draft_sampled, drafts)
                given = (logits, drafts, input_batch.cu_num_logits)
                sampled, num_sampled = _verified(self, given, input_batch, draft_logits, pos, greedy)
        except ValueError as error:
            # Shapes and dtypes are looked at before anything is launched.
            reason = "unexpected_layout"
            verified_batches.warn_once(reason, error)
        except Exception as error:
            # Logits are only read: the engine can verify the same batch.
            reason = "failed"
            scope.greedy = scope.sampled = False
            GUARD.failed("_verify_in_chunks", error)
            logger.error("specctl: vLLM's sampler verifies from here on, ours failed: %s", error)
        verified_batches.count(reason)
        if reason is not None:
            return original(
                self, logits, input_batch, draft_logits, draft_sampled, pos, max_chunk_logits,
                max_num_logprobs, verify_draft_sampled,
            )  # fmt: skip
        logprobs = self._get_logprobs_tensors(
            sampled,
            num_sampled,
            logits,
            input_batch.cu_num_logits,
            input_batch.cu_num_logits_np,
            max_num_logprobs,
        )
        return sampled, num_sampled, logprobs, None

    return _verify_in_chunks


def _verified(
    rejection: Any,
    given: tuple[Any, Any, Any],
    input_batch: Any,
    draft_logits: Any,
    pos: Any,
    is_all_greedy: bool,
) -> tuple[Any, Any]:
    """(int64[R, drafts + 1], int32[R]). given: logits, drafts, starts."""
    if is_all_greedy:
        return verify_greedy(*given, width=rejection.num_speculative_steps + 1)
    has_cuts = _cuts(rejection.sampler.sampling_states, input_batch.idx_mapping_np)
    return _sampled(rejection, given, input_batch.idx_mapping, draft_logits, pos, has_cuts)


def _sampled(
    rejection: Any,
    given: tuple[Any, Any, Any],
    slots: Any,
    draft_logits: Any,
    pos: Any,
    has_cuts: bool,
) -> tuple[Any, Any]:
    """As ``_verified``. All cuts or none: each set that is given is a kernel of its own to compile."""
    states = rejection.sampler.sampling_states
    cuts: tuple[Any, Any, Any] = (None, None, None)
    if has_cuts:
        cuts = (states.top_k.gpu, states.top_p.gpu, states.min_p.gpu)
    return _sampled_verifier(rejection)(
        *given, Sampling(states.temperature.gpu, *cuts, states.seeds.gpu), pos,
        width=rejection.num_speculative_steps + 1, draft_logits=draft_logits,
        draft_slots=None if draft_logits is None else slots, slots=slots,
        not_finite=verified_batches.not_finite_on(given[0].device),
    )  # fmt: skip


def _sampled_verifier(rejection: Any) -> Any:
    """By ``rejection_sample_method``. Of drafts without a distribution both keep as many."""
    return verify_block if rejection.use_block_verification else verify_rejection


def _cuts(states: Any, requests: np.ndarray) -> bool:
    return bool(
        np.count_nonzero(states.top_p.np[requests] != 1.0)
        or np.count_nonzero(states.top_k.np[requests] != states.vocab_size)
        or np.count_nonzero(states.min_p.np[requests])
    )


def _compile_once(rejection: Any, logits: Any, draft_logits: Any) -> None:
    """The kernels that ``_verified`` may choose, in vLLM's own warm-up; a request would wait for seconds."""
    is_ours = scope.sampled and (scope.block or not rejection.use_block_verification)
    if not is_ours or getattr(rejection, "specctl_is_compiled", False) or not logits.is_cuda:
        return
    rejection.specctl_is_compiled = True
    import torch

    rows = min(2, rejection.num_speculative_steps + 1)
    zeros = functools.partial(torch.zeros, device=logits.device)
    starts = torch.tensor([0, rows], dtype=torch.int32, device=logits.device)
    drafts, slots = zeros(rows, dtype=torch.int32), zeros(1, dtype=torch.int64)
    given = (zeros((rows, logits.shape[1]), dtype=logits.dtype), drafts, starts)
    for has_cuts in (True, False):
        try:
            _sampled(rejection, given, slots, draft_logits, zeros(rows, dtype=torch.int64), has_cuts)
        except Exception:
            scope.sampled = False
            logger.exception("specctl: vLLM's sampler verifies sampled requests, ours cannot be compiled")
            return
