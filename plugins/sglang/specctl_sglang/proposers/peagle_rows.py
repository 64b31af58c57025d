"""The shape of a parallel draft pass (arXiv 2602.01469, section 3), the same for every step, and when one is
run beside those of the steps. What its rows hold: ``specctl_kernels.peagle_rows``."""

from __future__ import annotations

__all__ = ["is_worth_a_pass", "rows_of_pass"]


def rows_of_pass(num_speculative_tokens: int) -> int:
    """Of each request: what a verification of so many drafts can accept, the target's own token included, and
    the mask rows."""
    return 2 * num_speculative_tokens


def is_worth_a_pass(without_drafts: int, requests: int) -> bool:
    """Whether drafts for some requests of a decode batch are worth a pass of their own, which runs for all.

    It takes about a quarter of a step, in which each of the requests would emit tau tokens, and gains tau - 1
    for each that is without: it pays where they are more than tau / (4 (tau - 1)) of all. That is 0.38 at 3
    tokens a step and 0.33 at 4: a third.
    """
    return 3 * without_drafts > requests
