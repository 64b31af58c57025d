"""Which nodes of EAGLE's trees were accepted, brought to the host with a step's result.

Hooked is ``eagle_sample``. Reason: its answer names the accepted nodes, of which SGLang hands on the tokens
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.utils.common import async_d2h

__all__ = ["AcceptedNodes", "copied", "install"]


@dataclass(frozen=True, slots=True)
class AcceptedNodes:
    """On the host once the copies of the step's result are."""

    made: Any
    """int64[n, w - 1]: of each node its number among all that the passes made."""
    nodes: Any
    """int32[n, d + 1]: the accepted path, as places in the batch's rows."""


def install() -> None:
    """In each process that may build a scheduler, before it does."""
    HookRegistry.register("sglang.srt.speculative.eagle_utils.eagle_sample", _noting_nodes, HookType.AROUND)


def copied(verify_input: Any) -> AcceptedNodes | None:
    """Starts the copies, in the order of the stream: before the next draft writes to ``specctl_made``, and
    before the copies of the result. None: it was no tree."""
    made, nodes = (getattr(verify_input, f"specctl_{name}", None) for name in ("made", "nodes"))
    return None if made is None or nodes is None else AcceptedNodes(async_d2h(made), async_d2h(nodes))


def _noting_nodes(original: Any, verify_input: Any, *given: Any, **named: Any) -> Any:
    found = original(verify_input, *given, **named)
    if getattr(verify_input, "specctl_made", None) is not None:
        verify_input.specctl_nodes = found[2]
    return found
