"""SGLang's EAGLE workers with a table: any prepared draft a step, none of them included.

``SteeredEagle`` is the worker of EAGLE, EAGLE3 and NEXTN, and goes before any that is derived from SGLang's
among the bases of a class.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

from specctl_sglang.compat.accepted_nodes import copied
from specctl_sglang.compat.eagle_states import EagleStates, as_drafter
from specctl_sglang.compat.first_use import compile_moves
from specctl_sglang.compat.steered_states import SteeredByStates
from specctl_sglang.proposers.ranks import compile_all
from specctl_sglang.terms import checked_tree

__all__ = ["SteeredEagle", "SteeredStandalone"]

logger = logging.getLogger("sglang.specctl")


class SteeredEagle(SteeredByStates, EAGLEWorkerV2):
    adaptive_controller: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        checked_tree(self.at_start)
        self._replaced_candidates = self._replace_adaptive_policy()
        self._draft_worker.specctl_worker = self

    @property
    def reads_hidden_states(self) -> bool:
        return not (_skips_while_off() or self.speculative_algorithm.is_standalone())

    def _replace_adaptive_policy(self) -> tuple[int, ...]:
        """SGLang's own would change the state back behind every table; its candidates are taken over."""
        policy, self.adaptive_controller = self.adaptive_controller, None
        if policy is None:
            return ()
        steps = tuple(sorted(policy.candidate_steps))
        logger.warning(
            "specctl: the table takes the place of --speculative-adaptive, with its steps: %s",
            ", ".join(map(str, steps)),
        )
        return steps

    def _own_candidates(self) -> tuple[int, ...]:
        return self._replaced_candidates

    def _made_at_start(self) -> EagleStates:
        if self.topk > 1:
            compile_all()
            compile_moves(self.target_worker.model_runner, self.at_start[0] + 1)
        return EagleStates(self, self.at_start)

    def _carried(self, tokens: torch.Tensor, lengths: torch.Tensor) -> EagleDraftInput:
        return EagleDraftInput(bonus_tokens=tokens.to(torch.int32))

    def verify(self, batch: Any, *given: Any, **named: Any) -> GenerationBatchResult:
        verify_input = batch.spec_info
        result = super().verify(batch, *given, **named)
        result.specctl_accepted = copied(verify_input)
        return result

    def _follow(self, batch: Any, result: GenerationBatchResult) -> None:
        if _skips_while_off():
            self._stub_skipped_draft_extend(batch, result)
            self._rank_stubs(result.next_draft_input)
            return
        drafter = self._draft_worker
        if drafter.plan_stream is not None:
            drafter.plan_stream.wait_stream(torch.get_device_module(self.device).current_stream())
        with as_drafter(drafter):
            drafter._draft_extend_for_decode(batch, result)

    def _rank_stubs(self, draft_input: Any) -> None:
        """SGLang's have the active state's columns and are all equal; of equal ones a tree may keep a child
        without its parent, which its kernels do not expect."""
        ranks = torch.arange(self._draft_worker.topk, device=self.device)
        shape = (draft_input.topk_p.shape[0], -1)
        draft_input.topk_index = ranks.expand(shape).contiguous()
        draft_input.topk_p = (1.0 / (ranks + 1)).expand(shape).contiguous()


class SteeredStandalone(SteeredEagle, StandaloneWorkerV2):
    """A draft model with vocabulary head and embedding of its own."""


def _skips_while_off() -> bool:
    """SGLang's own switch: the draft model reads nothing while nothing is drafted."""
    return bool(envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.get())
