"""One number of drafts for data-parallel ranks that run every step together; the V1 runner's part of it.

Ranks of a mixture-of-experts model share each forward pass. A draft head's passes are counted by all of them:
a rank that made fewer would leave the others waiting. So the rank with the largest decode batch decides, by
its table, how many drafts all ranks make at the end of a step. What each rank wants travels in the all-reduce
by which vLLM's ranks agree on padding before that step; there is no further collective.
"""

from __future__ import annotations

import functools
from typing import Any

from specctl_vllm.report import DraftWish

__all__ = ["AGREEMENT", "ROWS", "wrap_drafter_dummy_run", "wrap_dummy_run", "wrap_run_ar"]

ROWS = 4


class _Agreement:
    """Of the worker in this process."""

    def __init__(self) -> None:
        self._mine: DraftWish | None = None
        self._planned: int | None = None
        self._is_open = False
        self.agreed: DraftWish | None = None
        """Of the step at hand; None: no rank has a request, or ranks run on their own."""
        self.most_planned: int | None = None
        """Drafts that some rank will verify of those of the step at hand; None: no rank has said."""

    def begin(self, wish: DraftWish | None, planned: int | None = None) -> None:
        """A step of all ranks begins. ``wish``: None where this rank has no request in it. ``planned``: what
        its scheduler counts on at the step's end, where it does not wait for an agreement."""
        self._mine, self._planned, self._is_open = wish, planned, True
        self.agreed = self.most_planned = None

    def row(self) -> list[int]:
        """This rank's part, ROWS numbers: the number + 1, its decode batch, whether it is a sample, what is
        planned + 1; zeros: nothing to say."""
        mine, planned = self._mine, self._planned
        if not self._is_open:
            return [0] * ROWS
        wish = [0, 0, 0]
        if mine is not None:
            wish = [mine.num_speculative_tokens + 1, mine.decode_batch, int(mine.is_sample)]
        return [*wish, 0 if planned is None else planned + 1]

    def close(self, rows: list[list[int]]) -> None:
        """``rows``: each number of ``row`` by rank. A draft head's passes reduce as well, and decide
        nothing."""
        if not self._is_open:
            return
        self._is_open = False
        *wished, planned = rows
        wishes = [
            DraftWish(number - 1, decode_batch, bool(is_sample))
            for number, decode_batch, is_sample in zip(*wished, strict=True)
            if number
        ]
        # The first of those with the largest batch, on every rank alike.
        self.agreed = max(wishes, key=lambda wish: wish.decode_batch, default=None)
        self.most_planned = max(planned) - 1 if any(planned) else None


AGREEMENT = _Agreement()


def wrap_run_ar(original: Any) -> Any:
    """The same four rows by rank, with ours behind them on the way."""

    @functools.wraps(original)
    def run_ar(
        should_ubatch: bool,
        orig_num_tokens_per_ubatch: int,
        padded_num_tokens_per_ubatch: int,
        cudagraph_mode: int,
        parallel_config: Any,
    ) -> Any:
        import torch
        from vllm.v1.worker.dp_utils import _get_device_and_group

        device, group = _get_device_and_group(parallel_config)
        own = [orig_num_tokens_per_ubatch, padded_num_tokens_per_ubatch, int(should_ubatch), cudagraph_mode]
        column = torch.tensor([*own, *AGREEMENT.row()], dtype=torch.int32)
        table = torch.zeros(len(column), parallel_config.data_parallel_size, dtype=torch.int32)
        table[:, parallel_config.data_parallel_rank] = column
        table = table.to(device)
        torch.distributed.all_reduce(table, group=group)
        AGREEMENT.close(table[len(own) :].tolist())
        return table[: len(own)]

    return run_ar


def wrap_dummy_run(original: Any) -> Any:
    """The runner's part of a step in which this rank has no request."""

    @functools.wraps(original)
    def dummy_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        AGREEMENT.begin(None)
        return original(self, *args, **kwargs)

    return dummy_run


def wrap_drafter_dummy_run(original: Any) -> Any:
    """As many passes as the other ranks' heads make: with 0 drafts one, which reads what was verified.

    The drafter keeps the number of its last step, which differs by rank. Where no rank has a request, all
    make the configured number.
    """

    @functools.wraps(original)
    def drafter_dummy_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        agreed = AGREEMENT.agreed
        number = (
            self.speculative_config.num_speculative_tokens
            if agreed is None
            else agreed.num_speculative_tokens
        )
        self.num_speculative_tokens = max(1, number)
        return original(self, *args, **kwargs)

    return drafter_dummy_run
