"""What an engine counts (GET /specctl/v1/telemetry): all monotonic since ``boot_id``, gauges apart."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specctl.contract.adaptivity import AdaptivityState
from specctl.contract.bounds import POSITIONS_MAX, BootId, Counters, Message, Positions
from specctl.contract.table import TableState

__all__ = ["AcceptanceGroup", "SelfChecks", "ShadowAcceptance", "Telemetry", "TelemetryCell"]

CELLS_MAX = 4096
ACCEPTANCE_GROUPS_MAX = 16


class TelemetryCell(Message):
    """Counters of the steps that ran with one decode-batch bucket and one setting.

    A request-step is one decoding request in one step. Requests in prefill are counted nowhere but in
    ``prefill_tokens``. Steps that held any have a cell of their own (``has_prefill``), because their seconds
    tell nothing about decoding. So have steps whose drafts were made in one pass with a prompt, or for
    another setting. An engine that runs prompts in steps of their own counts those in a cell of the batch 0,
    without a request-step.
    """

    decode_batch_from: int
    decode_batch_to: int
    num_speculative_tokens: int = Field(ge=0)
    tree_topk: int = Field(default=1, ge=1)
    verify_width_tokens: int | None = Field(default=None, ge=1, description="None: depth + 1")
    has_prefill: bool
    after_rest: bool = Field(
        default=False,
        description="the draft head had rested and caught up in these steps, or they are the first at 0 "
        "drafts behind one that drafted, where launches run ahead: their seconds are no other step's",
    )
    steps: int = Field(ge=0)
    request_steps: int = Field(ge=0)
    emitted_tokens: int = Field(ge=0, description="accepted + 1 for each request-step")
    sampled_steps: int = Field(default=0, ge=0, description="of steps: samples of another setting's row")
    verified_tokens: int = Field(
        ge=0, description="positions the target scored, padding of a shared width included"
    )
    drafted_at: Positions = Field(description="[j]: request-steps with more than j drafted tokens")
    accepted_at: Positions = Field(
        description="[j]: request-steps whose first j + 1 drafted tokens were all accepted"
    )
    accepted_rank_at: tuple[Annotated[tuple[int, ...], Field(max_length=64, fail_fast=True)], ...] = Field(
        default=(),
        max_length=POSITIONS_MAX,
        fail_fast=True,
        description="[j][r]: of accepted_at[j], those whose accepted token at that depth was the draft's "
        "choice of rank r there (0: its first); empty for chains, where every rank is 0",
    )
    context_tokens: int = Field(ge=0, description="summed over request-steps")
    prefill_tokens: int = Field(ge=0)
    step_s: float = Field(ge=0, allow_inf_nan=False)
    step_s_squared: float = Field(ge=0, allow_inf_nan=False, description="sum of step_s^2")
    verified_tokens_squared: float = Field(
        ge=0, allow_inf_nan=False, description="sum over steps of (verified tokens of the step)^2"
    )
    step_s_by_verified_tokens: float = Field(
        ge=0, allow_inf_nan=False, description="sum over steps of step_s x verified tokens of the step"
    )
    draft_s: float = Field(ge=0, allow_inf_nan=False)
    verify_s: float = Field(ge=0, allow_inf_nan=False, description="target forward and sampling")

    @property
    def drafted_tokens(self) -> int:
        return sum(self.drafted_at)

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted_at)


class ShadowAcceptance(Message):
    """How drafts of the full configured length fare against the tokens emitted later, verified or not.

    One draft at a time is followed for each request; the next one starts where the target would have
    continued, so that the counters follow the course of a server that always drafts the full length.
    """

    drafts: int = Field(ge=0, description="followed to the end, empty drafts included")
    drafted_at: Positions = Field(description="[j]: drafts with more than j tokens")
    accepted_at: Positions = Field(description="[j]: drafts whose first j + 1 tokens all came true")


class AcceptanceGroup(Message):
    """Counters of request-steps whose requests had had their drafts accepted about as often until then.

    On a sample of the steps. Positions that the step's setting did not ask for are in no counter.
    """

    request_steps: int = Field(ge=0)
    reached_at: Positions = Field(
        description="[j]: request-steps under a setting deeper than j whose first j drafted tokens were all "
        "accepted"
    )
    accepted_at: Positions = Field(
        description="[j]: request-steps whose first j + 1 drafted tokens were all accepted"
    )


class SelfChecks(Message):
    """Greedy answers that were decoded again without drafts while the engine was idle."""

    checked: int = Field(default=0, ge=0, description="up to their end, or to the first token that differs")
    identical: int = Field(default=0, ge=0)
    ties: int = Field(default=0, ge=0, description="part where tokens are equally likely but for rounding")
    differing: int = Field(default=0, ge=0, description="part where they should not")


class Telemetry(Message):
    contract_version: int
    boot_id: BootId
    uptime_s: float = Field(ge=0, allow_inf_nan=False)
    table_version: int
    table_state: TableState
    num_speculative_tokens: int = Field(description="of the last step")
    running: int = Field(ge=0)
    waiting: int = Field(ge=0)
    decoding: int = Field(ge=0, description="running requests past their prefill")
    kv_cache_used_ratio: float = Field(ge=0, allow_inf_nan=False)
    cells: tuple[TelemetryCell, ...] = Field(max_length=CELLS_MAX, fail_fast=True)
    shadow: ShadowAcceptance | None = None
    acceptance_groups: tuple[AcceptanceGroup, ...] = Field(
        default=(),
        max_length=ACCEPTANCE_GROUPS_MAX,
        fail_fast=True,
        description="the same groups, in the same order, since boot_id; empty: not told apart",
    )
    adaptivity: AdaptivityState | None = Field(
        default=None, description="of the engine's own adaptivity; None: it has none"
    )
    self_checks: SelfChecks | None = Field(default=None, description="None: verify_shadow_ratio is 0")
    front_end_waiting_pieces: int | None = Field(
        default=None,
        ge=0,
        description="gauge: what one request emitted in one step is a piece; those that the HTTP server has "
        "not taken up yet; None: not known",
    )
    guarded_steps: int = Field(default=0, ge=0, description="steps without drafts for safety's sake")
    steering_s: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="spent in the plugin's own part of the scheduler"
    )
    proposer: Counters = Field(default_factory=dict, description="the proposer's own counters")
    failures: Counters = Field(
        default_factory=dict,
        description="calls of the plugin's own code that raised, by entry; each cost one step its drafts",
    )
