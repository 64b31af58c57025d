"""SGLang's DFLASH worker with a table: a draft is one pass over a block, whose length is what a table says.

A block shorter than the draft model was trained for is SGLang's own ``--speculative-dflash-block-size``.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

from specctl_sglang.compat.dflash_states import DflashStates
from specctl_sglang.compat.steered_states import SteeredByStates

__all__ = ["SteeredDflash"]


class SteeredDflash(SteeredByStates, DFlashWorkerV2):
    verifies_by_links = False

    def _made_at_start(self) -> DflashStates:
        return DflashStates(self, self.at_start)

    def _carried(self, tokens: torch.Tensor, lengths: torch.Tensor) -> Any:
        return self._make_next_draft_input_decode(bonus_tokens=tokens, new_seq_lens=lengths)

    def _follow(self, batch: Any, result: GenerationBatchResult) -> None:
        """The draft model's KV is projected from the target's hidden states: no pass of it is needed."""
        output = result.logits_output
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=output.hidden_states,
            cache_loc=batch.out_cache_loc,
            positions=batch.seq_lens.to(torch.int64),
            extend_lens=torch.ones_like(batch.seq_lens, dtype=torch.int32),
        )
        # Nobody reads them, and the overlap scheduler would copy them to the host.
        output.hidden_states = None
