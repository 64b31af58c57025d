"""A hybrid's EAGLE head or MTP layer on the V1 model runner: where no draft of its is wanted it skips steps.

Stock vLLM runs the head in every step, for its KV cache. Here the steps' rows are held, and one pass reads
what has gathered: before the head drafts again, or once a request has RING of them. The weights are read once
instead of RING times, and the cache is complete when drafts are wanted. A head that drafts alone reads along:
the seconds of a step at 0 drafts are then those of a steady one.

Where a request ends while rows of it are held, the head's cache lacks them: another one that takes these
blocks from the prefix cache drafts worse at no more than RING positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from specctl.engine.guard import GUARD
from specctl_vllm.proposers.held_rows import CatchUp, HeldRows, Numbers, Rows

__all__ = ["RestingHead", "resting_head_of", "wrap_propose"]

RING = 32


def resting_head_of(runner: Any) -> RestingHead | None:
    """Of a hybrid's runner whose head may rest; made at its first step."""
    if not hasattr(runner, "specctl_resting_head"):
        runner.specctl_resting_head = None
        head = runner.drafter
        if _may_rest(runner, head):
            head.specctl_resting = runner.specctl_resting_head = RestingHead(head)
    found: RestingHead | None = runner.specctl_resting_head
    return found


def _may_rest(runner: Any, head: Any) -> bool:
    """Ranks of a mixture of experts make each pass together. The rest are ways of drafting whose first pass
    takes other rows than the target's."""
    speculative_config, parallel_config = runner.speculative_config, runner.vllm_config.parallel_config
    return (
        speculative_config.use_eagle()
        and not speculative_config.disable_padded_drafter_batch
        and parallel_config.data_parallel_size == parallel_config.decode_context_parallel_size == 1
        and not head.needs_extra_input_slots
        and not head.constant_draft_positions
        and not head.use_heterogeneous_vocab
        and not head.supports_mm_inputs
        and not head.uses_mrope
        and len(head.draft_attn_groups) == 1
    )


class RestingHead:
    """Beside a drafter of vLLM's."""

    def __init__(self, head: Any) -> None:
        self._held = HeldRows(RING, head.max_num_tokens)
        self._longest_decode = head.speculative_config.num_speculative_tokens + 1
        """A step's longer queries are prompts."""
        self._step: tuple[Sequence[str], Numbers | None] | None = None
        self.catches_up = False
        """During a pass that drafts nothing."""

    def begin(self, request_ids: Sequence[str], rejected: Numbers | None) -> None:
        """Of the step whose drafts come next. rejected: drafts of each request that were rejected; None: the
        host does not know, unless none were verified."""
        self._step = request_ids, rejected

    def drop(self, request_ids: Iterable[str]) -> None:
        """Requests that ended, or that begin anew."""
        self._held.drop(request_ids)

    def rests(self, catch_up: Callable[..., Any], given: dict[str, Any]) -> bool:
        """Whether the head need not run on this step. What it has to read before is read by ``catch_up``.

        given: vLLM's arguments.
        """
        step, self._step = self._step, None
        if step is None:
            return False
        try:
            return self._rests(catch_up, given, *step)
        except Exception:
            self._held.clear()
            raise

    def _rests(
        self,
        catch_up: Callable[..., Any],
        given: dict[str, Any],
        ids: Sequence[str],
        rejected: Numbers | None,
    ) -> bool:
        metadata = given["common_attn_metadata"]
        starts = metadata.query_start_loc_cpu.numpy().astype(np.intp)
        queries = np.diff(starts)
        if rejected is None and given["num_rejected_tokens_gpu"] is None:
            rejected = np.zeros_like(queries)
        if given["num_speculative_tokens"] > 0 or rejected is None:
            self._catch_up(catch_up, ids, starts, given)
            return False
        is_decode = queries <= self._longest_decode
        may_rest = bool(is_decode.all())
        self._held.drop(ids[row] for row in np.flatnonzero(~is_decode))
        # Beside a prompt the head runs on every row. It reads those that follow held ones once more, after
        # them.
        is_held = is_decode if may_rest else is_decode & np.array([one in self._held for one in ids], bool)
        rows = np.flatnonzero(is_held)
        held_ids, counts = [ids[row] for row in rows], (queries - rejected)[rows]
        if not self._held.fits(held_ids, counts):
            self._catch_up(catch_up, ids, starts, given)
            if not may_rest:
                return False
        if rows.size:
            self._held.keep(held_ids, starts[rows], counts, _rows_of(given))
        return may_rest

    def _catch_up(
        self, catch_up: Callable[..., Any], ids: Sequence[str], starts: Numbers, given: dict[str, Any]
    ) -> None:
        found = self._held.take(ids)
        if found is None:
            return
        self.catches_up = True
        try:
            catch_up(**_arguments(found, starts, given))
        finally:
            self.catches_up = False


def _rows_of(given: dict[str, Any]) -> Rows:
    return Rows(
        given["target_token_ids"],
        given["target_positions"],
        given["common_attn_metadata"].slot_mapping,
        given["target_hidden_states"],
    )


def _arguments(found: CatchUp, starts: Numbers, given: dict[str, Any]) -> dict[str, Any]:
    """vLLM's own arguments for a pass over held rows. Behind each request's last one comes its first token of
    the step at hand."""
    metadata, rows, requests = given["common_attn_metadata"], found.rows, found.requests
    device = rows.ids.device
    ends = np.cumsum(found.counts)
    bounds = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
    batch = torch.from_numpy(requests).to(device)
    seq_lens = rows.positions[torch.from_numpy(ends - 1).to(device)] + 1
    upper_bound = metadata.seq_lens_cpu_upper_bound
    if upper_bound is not None:
        queries = np.diff(starts)[requests]
        upper_bound = (upper_bound[torch.from_numpy(requests)] - torch.from_numpy(queries)).int()
    return {
        "num_speculative_tokens": 0,
        "target_token_ids": rows.ids,
        "target_positions": rows.positions,
        "target_hidden_states": rows.states,
        "next_token_ids": given["target_token_ids"][torch.from_numpy(starts[requests]).to(device)],
        "token_indices_to_sample": None,
        "sampling_metadata": given["sampling_metadata"],
        "common_attn_metadata": type(metadata)(
            query_start_loc=bounds.to(device),
            query_start_loc_cpu=bounds,
            seq_lens=seq_lens.to(metadata.seq_lens.dtype),
            seq_lens_cpu_upper_bound=upper_bound,
            num_reqs=len(requests),
            num_actual_tokens=int(ends[-1]),
            max_query_len=int(found.counts.max()),
            max_seq_len=metadata.max_seq_len,
            block_table_tensor=metadata.block_table_tensor[batch],
            slot_mapping=rows.slots,
        ),
    }


def wrap_propose(original: Any) -> Any:
    @functools.wraps(original)
    def propose(self: Any, *args: Any, **kwargs: Any) -> Any:
        resting: RestingHead | None = getattr(self, "specctl_resting", None)
        if resting is not None and not args and not GUARD.is_resting:
            catch_up = functools.partial(original, self)
            if GUARD.call("head.rests", False, resting.rests, catch_up, kwargs):
                ids = kwargs["next_token_ids"]
                self.num_speculative_tokens, self._last_draft_probs = 0, None
                return torch.empty(len(ids), 0, dtype=torch.int64, device=ids.device)
        return original(self, *args, **kwargs)

    return propose
