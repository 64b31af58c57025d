"""The suffix index's numbers, for the kernel that drafts by the same rule."""

from __future__ import annotations

from typing import Any

from specctl.draft.calibration import MOST_MATCH
from specctl.draft.chains import CAP, HEAD, NB, NB1, POS_BITS
from specctl.draft.gather import CANDIDATES, ENOUGH, OWN_VISITS, VISITS
from specctl.draft.options import SuffixIndexOptions
from specctl.draft.resume import EDIT_TOKENS, LONG_MATCH, SHIFT
from specctl.draft.suffix_index import rungs_for

__all__ = ["limits_of", "rule_of"]


def rule_of(options: SuffixIndexOptions) -> dict[str, Any]:
    """Fields of ``specctl_kernels.suffix_draft.SuffixDraftRule``."""
    return {
        "rungs": tuple(rungs_for(options).tolist()),
        "min_match_tokens": options.min_match_tokens,
        "max_match_tokens": options.max_match_tokens,
        "visits": VISITS,
        "own_visits": OWN_VISITS,
        "enough": ENOUGH,
        "most_match": MOST_MATCH,
        "candidates": CANDIDATES,
        "long_match": LONG_MATCH,
        "edit_tokens": EDIT_TOKENS,
        "shift": SHIFT,
        "places": (CAP, NB, HEAD, POS_BITS, NB1),
    }


def limits_of(options: SuffixIndexOptions) -> tuple[float, float, float]:
    """``limits`` of ``specctl_kernels.suffix_draft.suffix_draft``."""
    return options.max_spec_factor, options.max_spec_offset, options.min_token_prob
