"""Are drafts accepted, and if not, why likely not?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specctl.contract.telemetry import TelemetryCell
from specctl.core.soundness import DRAFTS_MIN, NEAR_ZERO_RATIO, is_head, near_zero
from specctl.doctor.finding import Finding, error, warning
from specctl.doctor.seen import Seen

__all__ = ["acceptance_findings", "first_token_acceptance"]

LOW = 0.5
"""Of the first token; under it another head gains more than another setting."""


def acceptance_findings(seen: Seen) -> tuple[list[Finding], str | None]:
    """And why nothing is known, where nothing is."""
    first, drafts, when = first_token_acceptance(seen)
    if first is None:
        return [], f"{drafts} drafts were made, {DRAFTS_MIN} are needed; send requests and look again"
    method = _method(seen)
    observed = (
        f"{first:.0%} of {drafts} drafts had their first token accepted {when}; method {method or 'unknown'}"
    )
    if first < NEAR_ZERO_RATIO:
        what, do = near_zero(method)
        found = error if is_head(method) else warning
        return [found("acceptance-near-zero", what, observed, do)], None
    if first < LOW and is_head(method):
        finding = warning(
            "acceptance-low",
            "the head guesses less than half of the next tokens",
            observed,
            "another head gains more than another setting: specctl recommend lists where heads come from and "
            "how one is trained; high temperatures lower it, too",
        )
        return [finding], None
    return [], None


def _method(seen: Seen) -> str:
    """In lower case; empty: not known, as of a server without the plugin."""
    return "" if seen.capabilities is None else seen.capabilities.method.lower()


def first_token_acceptance(seen: Seen) -> tuple[float | None, int, str]:
    """Share accepted, of how many drafts, and since when."""
    if seen.after is not None:
        recent = _of_cells(seen.window_cells)
        if recent[1] >= DRAFTS_MIN:
            return recent[0] / recent[1], recent[1], "in the last seconds"
        accepted, drafts = _of_cells(seen.after.cells)
    elif seen.metrics is not None and seen.metrics.drafts and seen.metrics.accepted_at:
        accepted, drafts = seen.metrics.accepted_at[0], seen.metrics.drafts
    else:
        return None, 0, ""
    return (accepted / drafts if drafts >= DRAFTS_MIN else None), drafts, "since the start"


def _of_cells(cells: Sequence[TelemetryCell]) -> tuple[int, int]:
    return _first_of(cell.accepted_at for cell in cells), _first_of(cell.drafted_at for cell in cells)


def _first_of(counts: Iterable[Sequence[int]]) -> int:
    return sum(one[0] for one in counts if one)
