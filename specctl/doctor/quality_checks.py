"""Are drafts accepted, and if not, why likely not?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specctl.doctor.finding import Finding, error, warning
from specctl.doctor.seen import Cells, Seen

__all__ = ["DRAFTS_MIN", "NEAR_ZERO", "acceptance_findings", "first_token_acceptance"]

DRAFTS_MIN = 50
"""Fewer tell nothing."""
NEAR_ZERO = 0.1
LOW = 0.5
"""Of the first token; under it another head gains more than another setting."""
_HEADS = ("eagle", "eagle3", "specctl_peagle", "specctl_hybrid", "mtp", "dflash", "dspark", "nextn", "medusa")
_TEXT = ("ngram", "ngram_gpu", "suffix", "specctl_suffix")


def acceptance_findings(seen: Seen) -> tuple[list[Finding], str | None]:
    """And why nothing is known, where nothing is."""
    first, drafts, when = first_token_acceptance(seen)
    if first is None:
        return [], f"{drafts} drafts were made, {DRAFTS_MIN} are needed; send requests and look again"
    method = _method(seen)
    told = (
        f"{first:.0%} of {drafts} drafts had their first token accepted {when}; method {method or 'unknown'}"
    )
    if first < NEAR_ZERO:
        return [_near_zero(method, told)], None
    if first < LOW and _is_head(method):
        finding = warning(
            "acceptance-low",
            "the head guesses less than half of the next tokens",
            told,
            "another head gains more than another setting: specctl recommend lists where heads come from and "
            "how one is trained; high temperatures lower it, too",
        )
        return [finding], None
    return [], None


def _near_zero(method: str, told: str) -> Finding:
    if _is_head(method):
        return error(
            "acceptance-near-zero",
            "the head's drafts are hardly ever accepted",
            told,
            "likely a head of another target (other fine-tune, quantisation or chat template), or a wrong "
            "format: specctl doctor with the launch command checks its sizes",
        )
    if method in _TEXT or method.startswith("specctl_suffix"):
        return warning(
            "acceptance-near-zero",
            "the text repeats nothing that could be drafted",
            told,
            "this traffic wants a head, a draft model or no speculation (specctl recommend); a "
            "prompt_lookup_min of 2 drafts from chance matches",
        )
    return warning(
        "acceptance-near-zero",
        "drafts are hardly ever accepted",
        told,
        "check that draft and target have the same tokenizer and chat template; a high temperature lowers it",
    )


def _is_head(method: str) -> bool:
    return method in _HEADS or method.endswith("_mtp")


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


def _of_cells(cells: Cells) -> tuple[int, int]:
    return _first_of(cell.accepted_at for cell in cells), _first_of(cell.drafted_at for cell in cells)


def _first_of(counts: Iterable[Sequence[int]]) -> int:
    return sum(one[0] for one in counts if one)
