"""Our verify kernels in the place of SGLang's, for NGRAM, SPECCTL_SUFFIX and EAGLE alike.

Hooked is ``eagle_sample``. Reason: SGLang has no seam for a verifier of one's own; with any sampled request
in a batch it makes probabilities of all rows, and reads and writes them again for top-k and for top-p. Ours
read the logits, and write none. Whatever they do not cover stays with SGLang, batch by batch
(``why_engine``).

SGLang is imported in functions only, so that tests can do without it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
import triton
from specctl_kernels.verify_tree import parents_of_links, verify_greedy_tree, verify_tree

from specctl_sglang.compat.verified_batches import batches

__all__ = ["EngineSettings", "install", "verified", "why_engine"]

logger = logging.getLogger("sglang.specctl")
_KNOWN_DRAFTS = ("NgramVerifyInput", "EagleVerifyInput")
_FAILED = "failed"
_has_failed = False
_is_compiled = False

Verified = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""predict int32[requests * rows], accepted drafts int32[requests], accept_index int32[requests, depth]."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Of the whole server; the thresholds can change while it runs."""

    is_simulated: bool
    has_dp_attention: bool
    has_sampled_drafts: bool
    accept_thresholds: tuple[float, float]
    full_rows: int


def install() -> None:
    """In each process that may build a scheduler, before it does; needs CUDA."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.speculative.eagle_utils.eagle_sample", _sampled_by_ours, HookType.AROUND
    )


def why_engine(
    verify_input: Any,
    batch: Any,
    grammar_mask: Any,
    uno_target_max_top_k: int | None,
    settings: EngineSettings,
) -> str | None:
    """Why a batch is SGLang's, None where it is ours. Asks the host only, so nothing waits."""
    if type(verify_input).__name__ not in _KNOWN_DRAFTS:
        return "unknown_drafts"
    if settings.is_simulated:
        return "simulated_acceptance"
    if settings.has_dp_attention:
        return "dp_attention"
    if settings.has_sampled_drafts or getattr(verify_input, "draft_probs", None) is not None:
        return "sampled_drafts"
    if uno_target_max_top_k is not None:
        return "uno"
    if grammar_mask is not None or batch.sampling_info.grammar_mask is not None:
        return "grammar"
    if batch.return_logprob:
        return "logprobs"
    return _why_changed_logits(batch.sampling_info) or _why_sampled(batch, settings)


def _why_changed_logits(sampling: Any) -> str | None:
    """What changes the logits, beside the options that our kernels read."""
    orchestrator = sampling.penalizer_orchestrator
    if (
        sampling.acc_additive_penalties is not None
        or sampling.acc_scaling_penalties is not None
        or (orchestrator is not None and orchestrator.is_required)
    ):
        return "penalties"
    if sampling.logit_bias is not None:
        return "logit_bias"
    if sampling.has_custom_logit_processor:
        return "logit_processor"
    return "sampling_mask" if any(sampling.return_sampling_masks or ()) else None


def _why_sampled(batch: Any, settings: EngineSettings) -> str | None:
    sampling = batch.sampling_info
    if sampling.is_all_greedy:
        return None
    if settings.accept_thresholds != (1.0, 1.0):
        return "accept_thresholds"
    if sampling.need_min_p_sampling and sampling.need_top_p_sampling:
        # SGLang's sampler cuts by top-p first and then by min-p, our kernels the other way round.
        options = [request.sampling_params for request in batch.reqs]
        if any(one.min_p > 0 and one.top_p < 1 for one in options):
            return "min_p_with_top_p"
    return None


def verified(verify_input: Any, sampling: Any, logits: torch.Tensor) -> Verified:
    """What SGLang's own kernels would write of a batch, by ours.

    logits  [requests * rows, V], the verified rows of each request in turn; not changed
    Greedy requests (top_k 1, whatever their temperature) get the target's first largest logit. Sampled ones
    get its law after temperature, min-p, top-k and top-p; drafts are taken as given, not as sampled, which
    holds for n-grams, suffix trees and the top tokens of a head. A sampled request that came to a row with a
    NaN, a +inf or nothing finite gets token 0.
    """
    rows = verify_input.draft_token_num
    requests = logits.shape[0] // rows
    parents = parents_of_links(verify_input.retrieve_next_token, verify_input.retrieve_next_sibling)
    starts = torch.arange(0, (requests + 1) * rows, rows, dtype=torch.int32, device=logits.device)
    drafts, width = verify_input.draft_token.view(-1), _padded(rows)
    if sampling.is_all_greedy:
        found = verify_greedy_tree(logits, drafts, parents, starts, width=width)
    else:
        found = verify_tree(
            logits, drafts, parents, starts, _temperatures(sampling), *_cuts(sampling),
            _seeds(sampling, requests, logits.device), verify_input.positions.view(-1), width=width,
        )  # fmt: skip
    return _as_engine_writes(*found, starts, rows, verify_input.max_tree_depth)


def _as_engine_writes(
    tokens: torch.Tensor,
    counts: torch.Tensor,
    paths: torch.Tensor,
    starts: torch.Tensor,
    rows: int,
    depth: int,
) -> Verified:
    requests = counts.shape[0]
    # Entries behind the count are -1 and go to a row of their own, which is left out.
    places = paths.remainder(rows + 1).long()
    predict = tokens.new_zeros((requests, rows + 1), dtype=torch.int32)
    predict.scatter_(1, places, tokens.to(torch.int32))
    index = torch.where(paths < 0, -1, paths + starts[:-1, None])[:, :depth]
    index = torch.nn.functional.pad(index, (0, depth - index.shape[1]), value=-1).contiguous()
    # The first row stays whatever came of it; only a request without a distribution lacks it so far.
    index[:, 0] = starts[:-1]
    return predict[:, :rows].flatten(), counts.clamp(1, depth) - 1, index


def _temperatures(sampling: Any) -> torch.Tensor:
    """float32[requests]; 0 for greedy ones, to which SGLang gives temperature 1 and top_k 1."""
    temperatures: torch.Tensor = sampling.temperatures.view(-1)
    return temperatures.masked_fill(sampling.top_ks <= 1, 0.0) if sampling.is_any_greedy else temperatures


def _cuts(sampling: Any) -> tuple[Any, Any, Any]:
    """All or none: each set of them that is given is a kernel of its own to compile."""
    if sampling.need_top_k_sampling or sampling.need_top_p_sampling or sampling.need_min_p_sampling:
        return sampling.top_ks, sampling.top_ps, sampling.min_ps
    return None, None, None


def _seeds(sampling: Any, requests: int, device: torch.device) -> torch.Tensor:
    """int64[requests]: the requests' own under deterministic inference, else new ones for each step."""
    own: torch.Tensor | None = sampling.sampling_seed
    return torch.randint(2**63 - 1, (requests,), device=device) if own is None else own


def _sampled_by_ours(
    original: Any,
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    uno_target_max_top_k: int | None = None,
) -> Any:
    given = (verify_input, batch, logits_output, grammar_mask, uno_target_max_top_k)
    if batch.forward_mode.is_idle():
        return original(*given)
    found, reason = _tried(*given)
    batches.count(reason)
    if found is None:
        return original(*given)
    predict, num_correct_drafts, accept_index = found
    if not batch.sampling_info.is_all_greedy:
        _broadcast(predict, accept_index, num_correct_drafts)
    return predict, num_correct_drafts + 1, accept_index


def _tried(
    verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any, uno_target_max_top_k: int | None
) -> tuple[Verified | None, str | None]:
    """What ours found, or why not. Logits are only read, so SGLang can verify the same batch."""
    global _has_failed
    if _has_failed:
        return None, _FAILED
    try:
        settings, logits = _engine_settings(), logits_output.next_token_logits
        reason = why_engine(verify_input, batch, grammar_mask, uno_target_max_top_k, settings)
        if reason is not None:
            return None, reason
        _sanitize(logits)
        _compile_once(logits, settings.full_rows)
        return verified(verify_input, batch.sampling_info, logits), None
    except Exception:
        logger.exception("specctl: SGLang verifies from here on, ours failed")
        _has_failed = True
        return None, _FAILED


def _engine_settings() -> EngineSettings:
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative.spec_utils import SIMULATE_ACC_LEN

    spec = get_spec()
    return EngineSettings(
        is_simulated=SIMULATE_ACC_LEN > 0,
        has_dp_attention=is_dp_attention_enabled(),
        has_sampled_drafts=bool(spec.speculative_use_rejection_sampling),
        accept_thresholds=(
            spec.speculative_accept_threshold_single,
            spec.speculative_accept_threshold_acc,
        ),
        full_rows=spec.speculative_num_draft_tokens,
    )


def _sanitize(logits: torch.Tensor) -> None:
    """As SGLang's own verification does, where SGLANG_SANITIZE_NAN_LOGITS asks for it."""
    from sglang.srt.utils.async_probe import sanitize_nan_logits

    sanitize_nan_logits(logits, "verify: target model logits")


def _broadcast(*results: torch.Tensor) -> None:
    """The first rank's results are everyone's: each rank draws seeds of its own.

    In SGLang's order and shapes, so that a rank on which ours failed stays in step with the others.
    """
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    if group.world_size > 1:
        for result in results:
            group.broadcast(result, src=0)


def _padded(rows: int) -> int:
    """One kernel for up to so many rows; a table may name any number."""
    return max(2, int(triton.next_power_of_2(rows)))


def _compile_once(logits: torch.Tensor, full_rows: int) -> None:
    """All kernels that ``verified`` may choose, with the first batch, which is SGLang's own warm-up request
    unless it was told to skip it; a later request would wait for seconds."""
    global _is_compiled
    if _is_compiled or not logits.is_cuda:
        return
    _is_compiled = True
    device, rows = logits.device, 2
    while rows <= _padded(full_rows):
        ones = torch.ones(1, device=device)
        zeros = torch.zeros(rows, dtype=torch.int64, device=device)
        links = torch.full((1, rows), -1, device=device)
        starts = torch.tensor([0, rows], dtype=torch.int32, device=device)
        trees = (logits.new_zeros((rows, logits.shape[1])), zeros, parents_of_links(links, links), starts)
        verify_greedy_tree(*trees, width=rows)
        for cuts in ((None, None, None), (ones.to(torch.int32), ones, ones)):
            verify_tree(*trees, ones, *cuts, zeros[:1], zeros, width=rows)
        rows *= 2
