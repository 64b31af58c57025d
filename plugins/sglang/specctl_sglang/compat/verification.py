"""Our verify kernels in the place of SGLang's, for NGRAM, SPECCTL_SUFFIX and EAGLE alike.

Hooked is ``eagle_sample``. Reason: SGLang has no seam for a verifier of one's own; with any sampled request
in a batch it makes probabilities of all rows, and reads and writes them again for top-k and for top-p. Ours
read the logits, and write none. Whatever they do not cover stays with SGLang, batch by batch
(``why_engine``).

SGLang is imported in functions only, so that tests can do without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from specctl_kernels.row_law.given import Sampling
from specctl_kernels.verify_tree import compiled_rows, verify_greedy_linked_trees, verify_linked_trees

from specctl.engine.guard import GUARD
from specctl_sglang.compat.releases import has_watermarks
from specctl_sglang.compat.verified_batches import batches
from specctl_sglang.options import Options

__all__ = [
    "EngineSettings",
    "compile_ahead",
    "install",
    "is_verified_by_ours",
    "verified",
    "why_engine",
    "wrap_eagle_sample",
]

_KNOWN_DRAFTS = ("NgramVerifyInput", "EagleVerifyInput")
_FAILED = "failed"
_SEEDS_AT_ONCE = 1 << 14
_options = Options(verify="engine")
_compiled: set[torch.dtype] = set()
"""Of logits: what their kernels were compiled for."""

Verified = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""predict int32[requests * rows], emitted tokens int32[requests], accept_index int32[requests, depth]."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Of the whole server; the thresholds can change while it runs."""

    is_simulated: bool
    has_dp_attention: bool
    has_sampled_drafts: bool
    accept_thresholds: tuple[float, float]
    full_rows: int


def install(options: Options) -> None:
    """In each process that may build a scheduler, before it does; needs CUDA."""
    global _options
    _options = options


def wrap_eagle_sample(original: Any) -> Any:
    def eagle_sample(verify_input: Any, batch: Any, *given: Any, **named: Any) -> Any:
        GUARD.call("eagle_sample", None, _limit_drafts, verify_input, batch)
        found = _sampled_where_asked_for(original, verify_input, batch, *given, **named)
        GUARD.call("eagle_sample", None, _note_nodes, verify_input, found)
        return found

    return eagle_sample


def _limit_drafts(verify_input: Any, batch: Any) -> None:
    """Ends each request's drafts at its own depth: what lies deeper is linked from nowhere."""
    limits = getattr(batch, "specctl_limits", None)
    if limits is None:
        return
    links = verify_input.retrieve_next_token
    positions = verify_input.positions.view(links.shape)
    most = torch.tensor(limits, dtype=positions.dtype).to(positions.device, non_blocking=True)
    is_last = positions - positions[:, :1] >= most[:, None]
    verify_input.retrieve_next_token = links.masked_fill(is_last, -1)


def _note_nodes(verify_input: Any, found: Verified) -> None:
    if getattr(verify_input, "specctl_made", None) is not None:
        verify_input.specctl_nodes = found[2]


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
    if getattr(verify_input, "draft_probs", None) is not None:
        return "sampled_drafts"
    if uno_target_max_top_k is not None:
        return "uno"
    if grammar_mask is not None or batch.sampling_info.grammar_mask is not None:
        return "grammar"
    return _why_engine_ahead(batch, settings)


def is_verified_by_ours(batch: Any) -> bool:
    """Before anything is drafted for it."""
    return (
        _is_asked_for()
        and not GUARD.is_resting
        and not batch.has_grammar
        and not has_watermarks(batch)
        and _why_engine_ahead(batch, _engine_settings()) is None
    )


def _why_engine_ahead(batch: Any, settings: EngineSettings) -> str | None:
    """What is known without its drafts."""
    if settings.is_simulated:
        return "simulated_acceptance"
    if settings.has_dp_attention:
        return "dp_attention"
    if settings.has_sampled_drafts:
        return "sampled_drafts"
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
    drafts, depth = _flat(verify_input.draft_token), verify_input.max_tree_depth
    links = verify_input.retrieve_next_token, verify_input.retrieve_next_sibling
    if sampling.is_all_greedy:
        return verify_greedy_linked_trees(logits, drafts, *links, depth=depth)
    requests = links[0].shape[0]
    return verify_linked_trees(
        logits, drafts, *links,
        Sampling(_flat(sampling.temperatures), *_cuts(sampling), _seeds(sampling, requests, logits.device)),
        _flat(verify_input.positions), depth=depth,
    )  # fmt: skip


def _flat(values: torch.Tensor) -> torch.Tensor:
    return values if values.ndim == 1 else values.view(-1)


def _cuts(sampling: Any) -> tuple[Any, Any, Any]:
    """All or none: each set of them that is given is a kernel of its own to compile. A greedy request, which
    SGLang gives temperature 1 and top_k 1, needs them."""
    if (
        sampling.is_any_greedy
        or sampling.need_top_k_sampling
        or sampling.need_top_p_sampling
        or sampling.need_min_p_sampling
    ):
        return sampling.top_ks, sampling.top_ps, sampling.min_ps
    return None, None, None


def _seeds(sampling: Any, requests: int, device: torch.device) -> torch.Tensor:
    """int64[requests]: the requests' own under deterministic inference, else new ones for each step."""
    own: torch.Tensor | None = sampling.sampling_seed
    return _drawn.take(requests, device) if own is None else own


class _Drawn:
    """Seeds drawn for many steps at once: to draw is a kernel of its own."""

    def __init__(self, at_once: int = _SEEDS_AT_ONCE) -> None:
        self._at_once = at_once
        self._seeds = torch.empty(0, dtype=torch.int64)
        self._taken = 0

    def take(self, requests: int, device: torch.device) -> torch.Tensor:
        """int64[requests], each given once."""
        first, end = self._taken, self._taken + requests
        if end > self._seeds.shape[0] or self._seeds.device != device:
            first, end = 0, requests
            self._seeds = torch.randint(2**63 - 1, (max(requests, self._at_once),), device=device)
        # Kernels are compiled for addresses of whole 16 bytes.
        self._taken = end + end % 2
        return self._seeds[first:end]


_drawn = _Drawn()


def _sampled_where_asked_for(original: Any, *given: Any, **named: Any) -> Any:
    if not _is_asked_for():
        return original(*given, **named)
    return _sampled_by_ours(original, *given, **named)


def _sampled_by_ours(
    original: Any,
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    uno_target_max_top_k: int | None = None,
    **named: Any,
) -> Any:
    given = (verify_input, batch, logits_output, grammar_mask, uno_target_max_top_k)
    if batch.forward_mode.is_idle():
        return original(*given, **named)
    if named.get("watermark_state") is not None and has_watermarks(batch):
        # Drawn by SGLang's own verification, which also records what it drew.
        tried: tuple[Verified | None, str | None] = (None, "watermark")
    else:
        tried = _tried(*given)
    found, reason = tried
    batches.count(reason)
    if found is None:
        return original(*given, **named)
    return found if batch.sampling_info.is_all_greedy else _of_first_rank(*found)


@cache
def _is_asked_for() -> bool:
    """Known once the server's algorithm is."""
    return _options.verifies(_engine().context.get_spec().speculative_algorithm or "")


def _tried(
    verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any, uno_target_max_top_k: int | None
) -> tuple[Verified | None, str | None]:
    """What ours found, or why not. Logits are only read, so SGLang can verify the same batch."""
    if GUARD.is_resting:
        return None, _FAILED
    given = verify_input, batch, logits_output, grammar_mask, uno_target_max_top_k
    return GUARD.call("eagle_sample", (None, _FAILED), _verified_by_ours, *given)


def _verified_by_ours(
    verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any, uno_target_max_top_k: int | None
) -> tuple[Verified | None, str | None]:
    settings, logits = _engine_settings(), logits_output.next_token_logits
    reason = why_engine(verify_input, batch, grammar_mask, uno_target_max_top_k, settings)
    if reason is not None:
        return None, reason
    _sanitize(logits)
    _compile_once(logits, settings.full_rows)
    return verified(verify_input, batch.sampling_info, logits), None


@cache
def _engine() -> SimpleNamespace:
    """SGLang's modules, imported once: to import a name takes a microsecond each time."""
    from sglang.srt import runtime_context
    from sglang.srt.layers import dp_attention
    from sglang.srt.speculative import spec_utils
    from sglang.srt.utils import async_probe

    return SimpleNamespace(
        context=runtime_context, dp_attention=dp_attention, spec_utils=spec_utils, async_probe=async_probe
    )


def _engine_settings() -> EngineSettings:
    engine = _engine()
    spec = engine.context.get_spec()
    return EngineSettings(
        is_simulated=engine.spec_utils.SIMULATE_ACC_LEN > 0,
        has_dp_attention=engine.dp_attention.is_dp_attention_enabled(),
        has_sampled_drafts=bool(spec.speculative_use_rejection_sampling),
        accept_thresholds=(
            spec.speculative_accept_threshold_single,
            spec.speculative_accept_threshold_acc,
        ),
        full_rows=spec.speculative_num_draft_tokens,
    )


def _sanitize(logits: torch.Tensor) -> None:
    """As SGLang's own verification does, where SGLANG_SANITIZE_NAN_LOGITS asks for it."""
    _engine().async_probe.sanitize_nan_logits(logits, "verify: target model logits")


def _ranks() -> Any:
    return _engine().context.get_parallel().tp_group


def _of_first_rank(predict: torch.Tensor, counts: torch.Tensor, accept_index: torch.Tensor) -> Verified:
    """The first rank's results are everyone's: each rank draws seeds of its own.

    In SGLang's order and shapes, and with its meaning, the number of accepted drafts, so that a rank on which
    ours failed stays in step with the others.
    """
    group = _ranks()
    if group.world_size == 1:
        return predict, counts, accept_index
    num_correct_drafts = counts - 1
    for result in (predict, accept_index, num_correct_drafts):
        group.broadcast(result, src=0)
    return predict, num_correct_drafts + 1, accept_index


def compile_ahead(result: Any) -> None:
    """With the logits of a prompt: SGLang's own warm-up request has one, and may find nothing to draft."""
    logits = getattr(getattr(result, "logits_output", None), "next_token_logits", None)
    if logits is not None and _is_asked_for():
        GUARD.call("eagle_sample", None, lambda: _compile_once(logits, _engine_settings().full_rows))


def _compile_once(logits: torch.Tensor, full_rows: int) -> None:
    """All kernels that ``verified`` may choose for logits of this dtype; a request would wait for seconds."""
    if logits.dtype in _compiled or not logits.is_cuda:
        return
    _compiled.add(logits.dtype)
    rows = compiled_rows(1)
    while rows <= compiled_rows(full_rows):
        for requests in (1, 3):  # the logits of few rows are read by another kernel
            _compile(logits, requests, rows - 1)
        rows *= 2


def _compile(logits: torch.Tensor, requests: int, rows: int) -> None:
    zeros = torch.zeros(requests * rows, dtype=torch.int64, device=logits.device)
    ones = torch.ones(requests, device=logits.device)
    links = torch.full((requests, rows), -1, device=logits.device)
    trees = (logits.new_zeros((requests * rows, logits.shape[1])), zeros, links, links)
    verify_greedy_linked_trees(*trees, depth=rows)
    all_cuts: list[tuple[Any, Any, Any]] = [(None, None, None), (ones.to(torch.int32), ones, ones)]
    for cuts in all_cuts:
        verify_linked_trees(*trees, Sampling(ones, *cuts, zeros[:requests]), zeros, depth=rows)
