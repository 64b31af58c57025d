"""The same agreement (``rank_agreement``) on Model Runner V2, whose ranks are scheduled ahead.

A step is scheduled before the one before it has ended, so a number that its own collective agrees on would
come too late for its drafts. What the ranks agree on goes to their schedulers with the step's tokens, and
each takes it for the next step that it schedules: all ranks the same number, two steps later.

A rank that has just got its first request, or one behind a guard, may plan another number meanwhile. All make
as many passes of the head as the largest number that any rank plans, so that none waits for another's pass;
each verifies as many drafts as it planned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from specctl_vllm.compat.rank_agreement import AGREEMENT, ROWS

__all__ = ["begin_step", "with_agreed_passes", "wrap_dummy_run", "wrap_get_dp_group"]


def begin_step(scheduler_output: Any, is_dummy: bool) -> None:
    """Before the collective of a step. is_dummy: this rank has no request in it."""
    wish = getattr(scheduler_output, "specctl_wish", None)
    AGREEMENT.begin(wish, None if is_dummy else scheduler_output.num_spec_tokens_to_schedule)


def wrap_get_dp_group(original: Any) -> Any:
    """Where the ranks agree on padding alone: that module has a name of its own for it."""

    @functools.wraps(original)
    def get_dp_group() -> Any:
        return _CarryingGroup(original())

    return get_dp_group


class _CarryingGroup:
    """A group of vLLM's whose sums of a table, by rank, have our rows behind the table's on the way."""

    def __init__(self, dp_group: Any) -> None:
        self._group, self._cpu_group, self._rank = dp_group, dp_group.cpu_group, dp_group.rank_in_group
        self.cpu_group = self
        """torch's all_reduce, which vLLM 0.32 calls with it, asks a group for ``allreduce`` alone."""

    def allreduce(self, tables: list[Any], options: Any) -> None:
        self._carry(tables[0], lambda wide: self._cpu_group.allreduce([wide], options).wait())

    def cpu_all_reduce_(self, table: Any) -> Any:
        """From vLLM 0.33 on."""
        return self._carry(table, self._group.cpu_all_reduce_)

    def _carry(self, table: Any, reduce: Callable[[Any], object]) -> Any:
        own = len(table)
        wide = table.new_zeros(own + ROWS, table.shape[1])
        wide[:own] = table
        wide[own:, self._rank] = wide.new_tensor(AGREEMENT.row())
        reduce(wide)
        AGREEMENT.close(wide[own:].tolist())
        return table.copy_(wide[:own])


def with_agreed_passes(speculator: Any) -> Any:
    """The same speculator of vLLM's, which makes as many passes as those of the other ranks: without a
    request too, where vLLM itself asks for the largest number."""
    propose = speculator.propose

    def proposed(*args: Any, num_speculative_tokens: int | None = None, **kwargs: Any) -> Any:
        number = AGREEMENT.most_planned
        if number is None or getattr(kwargs.get("dp_sync_state"), "skip_drafts", False):
            # vLLM 0.33: no rank can use the drafts of this step, and none makes any.
            number = num_speculative_tokens
        return propose(*args, num_speculative_tokens=number, **kwargs)

    speculator.propose = proposed
    return speculator


def wrap_dummy_run(original: Any) -> Any:
    """Reason: full graphs are for batches in which each request verifies as many drafts, on all ranks. The
    rank without requests takes the number of which the others have drafts from the step before."""

    @functools.wraps(original)
    def dummy_run(self: Any, *args: Any, uniform_decode: bool = False, **kwargs: Any) -> Any:
        number, full = AGREEMENT.most_planned, self.decode_query_len
        # Microbatches are for decodes of the largest number, by every rank's own view of its batch.
        if uniform_decode and number is not None and self.ubatch_runner is None:
            self.decode_query_len = full - self.num_speculative_steps + number
        try:
            return original(self, *args, uniform_decode=uniform_decode, **kwargs)
        finally:
            self.decode_query_len = full

    return dummy_run
