"""What benchmarks.gpu.sglang_compare starts: servers by the part that needs them, each as data.

A file of ``--arms-file`` adds to these or takes their place: {"NAME": {"arguments": [...], "options": {...},
"rows": [[from, drafts], ...], "places": n, "kv_tokens": n}}; all keys may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.gpu.sglang_arms import Setting

__all__ = ["DEFAULTS", "OFF_FEW", "SETTINGS", "chosen"]

OURS = "specctl_suffix"
_DRAFTS = 8
_CANDIDATES = [0, 2, 4, _DRAFTS]
_SUFFIX = (
    *("--speculative-algorithm", "SPECCTL_SUFFIX"),
    *("--speculative-num-draft-tokens", str(_DRAFTS + 1)),
)
_SUFFIX_ROWS = ((1, _DRAFTS), (33, _DRAFTS // 2))
"""By the cost of verified tokens on an H200 as it was measured with vLLM."""


def _ngram(*more: str) -> Setting:
    return Setting(("--speculative-algorithm", "NGRAM", *more), places=64)


def _suffix(*more: str, places: int = 256, **options: object) -> Setting:
    return Setting((*_SUFFIX, *more), {"candidates": _CANDIDATES, **options}, _SUFFIX_ROWS, places)


def _eagle3(steps: int, topk: int, width: int, places: int) -> Setting:
    return Setting(
        (
            *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "{eagle3}"),
            *("--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)),
            *("--speculative-num-draft-tokens", str(width)),
        ),
        places=places,
    )


def _peagle(drafts: int, *more: str) -> Setting:
    return Setting(
        (
            *("--speculative-algorithm", "SPECCTL_PEAGLE", "--speculative-draft-model-path", "{peagle}"),
            *("--speculative-num-draft-tokens", str(drafts + 1), *more),
        ),
        places=8,
    )


OFF_FEW = "off-few"
SETTINGS: dict[str, Setting] = {
    "off": Setting(),
    "off-fa3": Setting(("--attention-backend", "fa3")),
    "ngram": _ngram("--speculative-num-draft-tokens", str(_DRAFTS + 1)),
    "ngram-12": _ngram(),
    OURS: _suffix(),
    "specctl_suffix-engine-kernels": _suffix(verify="engine"),
    "specctl_suffix-fa3": _suffix("--attention-backend", "fa3"),
    OFF_FEW: Setting(places=8),
    "eagle3": _eagle3(5, 1, 6, 8),
    "eagle3-8": _eagle3(8, 1, 9, 8),
    "specctl_peagle": _peagle(5),
    "specctl_peagle-8": _peagle(8),
    "specctl_peagle-8-map": _peagle(8, "--speculative-token-map", "{token_map}"),
    # Name, verify width, branches x depth.
    "chain-16": _eagle3(15, 1, 16, 1),
    "tree-16-4x6": _eagle3(6, 4, 16, 1),
    "tree-16-2x8": _eagle3(8, 2, 16, 1),
    "chain-32": _eagle3(31, 1, 32, 1),
    "tree-32-4x8": _eagle3(8, 4, 32, 1),
    "tree-32-2x12": _eagle3(12, 2, 32, 1),
}
_SHARED_ARMS = ("off", "ngram", OURS)
_HEADS = (OFF_FEW, "eagle3", "eagle3-8", "specctl_peagle-8", "specctl_peagle-8-map")
DEFAULTS: dict[str, tuple[str, ...]] = {
    "copying": _SHARED_ARMS,
    "off": _SHARED_ARMS,
    "table": _SHARED_ARMS,
    "drafts": _SHARED_ARMS,
    "tree": (OFF_FEW, *(name for name in SETTINGS if name.startswith(("chain-", "tree-")))),
    "peagle": _HEADS,
    "sampled": ("specctl_suffix-engine-kernels", OURS),
}


def chosen(names: Iterable[str], file: Path | None) -> Mapping[str, Setting]:
    """Raises ValueError for a name that there is no setting of."""
    told = {} if file is None else json.loads(file.read_text(encoding="utf-8"))
    known = SETTINGS | {name: Setting.of(one) for name, one in told.items()}
    names = list(names)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"expected arms among {', '.join(known)}, got {', '.join(unknown)}")
    return {name: known[name] for name in names}
