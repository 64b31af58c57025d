"""Suffix drafts on Model Runner V2: found on the device, in the order of its stream.

The host's index (``proposers.suffix``) has the same rule. The tokens of every request are on the device
already; finished outputs come from the scheduler and become a corpus there (``device_corpus``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from specctl_kernels.suffix_draft import SuffixDraftRule, suffix_draft
from vllm.distributed.parallel_state import get_tp_group

from specctl.draft import device_rule
from specctl.draft.suffix_index import SHARED, rungs_for
from specctl.engine.guard import GUARD
from specctl_vllm.options import suffix_options_from_env
from specctl_vllm.proposers.corpus_keeping import kept_by_rank_0
from specctl_vllm.proposers.device_corpus import DeviceCorpusFeeder
from specctl_vllm.proposers.device_outcomes import DeviceOutcomes

__all__ = ["DeviceSuffixSource"]


class DeviceSuffixSource:
    """drafts int64[R, K], probs float32[R, K] and counts int32[R] of the last call, R requests, K drafts."""

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        suffix = suffix_options_from_env()
        index = suffix.index_options()
        width = vllm_config.speculative_config.num_speculative_tokens
        requests = vllm_config.scheduler_config.max_num_seqs
        self._req_states = req_states
        self._rule = SuffixDraftRule(**device_rule.rule_of(index))
        self._limits = torch.tensor(device_rule.limits_of(index), dtype=torch.float64, device=device)
        self._reads_corpus = torch.full((requests,), int(suffix.use_global), dtype=torch.int32, device=device)
        self._foreign: set[int] = set()
        """Slots of requests of other namespaces: they read no shared outputs."""
        self._foreign_ids: set[str] = set()
        places = requests * width
        # One piece of memory, so that one broadcast brings it to all ranks.
        self._found = torch.zeros(3 * (places + requests), dtype=torch.int32, device=device)
        self.drafts = self._found[: 2 * places].view(torch.int64).view(requests, width)
        self.probs = self._found[2 * places : 3 * places].view(torch.float32).view(requests, width)
        self._heads = self._found[3 * places :].view(3, requests)
        self.counts = self._heads[0]
        self._tp_group = get_tp_group()
        self._use_global = suffix.use_global
        # Ranks that draft for themselves draft alike while their tables are the same.
        is_learning = suffix.use_global or self._tp_group.world_size == 1
        self._outcomes = DeviceOutcomes(requests, width, device, is_learning)
        self._feeder = DeviceCorpusFeeder(suffix.device_bytes, rungs_for(index), device, self._outcomes)
        self._keeper = kept_by_rank_0(vllm_config, suffix, self._feeder, self._feeder.half_bytes)

    def compile(self) -> None:
        """So that no step has to."""
        none = torch.zeros(1, dtype=torch.int32, device=self._heads.device)
        slots = torch.zeros(1, dtype=torch.int64, device=self._heads.device)
        self._launch(slots, none, 1)
        self._agree()

    def note_step(self, scheduler_output: Any) -> None:
        """What the scheduler sends along: outputs that finished, and namespaces of new requests."""
        self._foreign_ids.difference_update(scheduler_output.finished_req_ids)
        self.isolate(getattr(scheduler_output, "specctl_namespaces", ()))
        if self._keeper is not None:
            GUARD.call("keeper.poll", None, self._keeper.poll)
        if self._use_global:
            self._feeder.add(
                np.asarray(output, np.int32)
                for namespace, output in getattr(scheduler_output, "specctl_outputs", ())
                if namespace == SHARED
            )

    def isolate(self, request_ids: Iterable[str]) -> None:
        """Requests of other namespaces or of unknown ones: no shared output is drafted for them."""
        self._foreign_ids.update(request_ids)

    def find(self, slots: torch.Tensor, num_sampled: torch.Tensor, wanted: int) -> None:
        """Fills the first n rows, for slots integer[n]; num_sampled int32[n], 0: no draft. A place without a
        draft holds an id that exists."""
        self._feeder.poll()
        self._outcomes.poll()
        self._mark_foreign()
        self._launch(slots, num_sampled, wanted)
        self._agree()

    def _agree(self) -> None:
        """All tensor-parallel ranks must verify the same drafts, and each swaps its corpus in when its own
        thread has built it. Without a corpus they draft alike."""
        if self._use_global and self._tp_group.world_size > 1:
            self._tp_group.broadcast(self._found, src=0)

    def _launch(self, slots: torch.Tensor, is_drafting: torch.Tensor, wanted: int) -> None:
        requests, states = slots.shape[0], self._req_states
        suffix_draft(
            states.all_token_ids.gpu, states.total_len.gpu, slots, is_drafting, self._reads_corpus,
            self._feeder.corpus, self._outcomes.chances, self._outcomes.odds, states.prefill_len.gpu,
            self._outcomes.lessons, self._rule, self._limits, wanted,
            self.drafts[:requests], self.probs[:requests], self._heads[:, :requests],
        )  # fmt: skip

    def _mark_foreign(self) -> None:
        index = self._req_states.req_id_to_index
        foreign = {index[request_id] for request_id in self._foreign_ids if request_id in index}
        if foreign != self._foreign:
            self._foreign = foreign
            reads = np.full(self._reads_corpus.shape[0], int(self._use_global), np.int32)
            reads[list(foreign)] = 0
            self._reads_corpus.copy_(torch.from_numpy(reads))
