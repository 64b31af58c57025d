"""Which nodes of EAGLE's trees were accepted, brought to the host with a step's result.

``verification.wrap_eagle_sample`` notes them: SGLang hands on the tokens alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.utils.common import async_d2h

__all__ = ["AcceptedNodes", "copied", "note_made"]


@dataclass(frozen=True, slots=True)
class AcceptedNodes:
    """On the host once the copies of the step's result are."""

    made: Any
    """int64[n, w - 1]: of each node its number among all that the passes made."""
    nodes: Any
    """int32[n, d + 1]: the accepted path, as places in the batch's rows."""


def copied(verify_input: Any) -> AcceptedNodes | None:
    """Starts the copy of the path, before those of the step's result. None: it was no tree."""
    made, nodes = (getattr(verify_input, f"specctl_{name}", None) for name in ("made", "nodes"))
    return None if made is None or nodes is None else AcceptedNodes(made, async_d2h(nodes))


def note_made(verify_input: Any, made: Any) -> None:
    """Of a tree that the draft model has just made. Its copy starts now: ``made`` is in a graph's memory,
    and the target's graph, where it was captured before, may write to the same places."""
    verify_input.specctl_made = async_d2h(made)
