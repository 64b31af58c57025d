"""vLLM servers on one GPU at the same time, by one call of ``specctl bench``: tokens/s of each, by batch.

    python -m benchmarks.gpu.compare off-cost --model FOLDER [--draft FOLDER] [--peagle FOLDER] --output FILE
    python -m benchmarks.gpu.compare copying --model FOLDER --output FILE
    python -m benchmarks.gpu.compare peagle --model FOLDER --draft FOLDER --peagle FOLDER --output FILE

off-cost: what a server pays that may draft and does not, against one that never enabled speculation.
copying: stock suffix, specctl_suffix and no speculation; no request drafts from another's answer.
peagle: stock P-EAGLE, specctl_peagle, specctl_hybrid, eagle3 and no speculation.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.serving import loads, parts_main, vllm

_OFF_TABLE = [[1, 16, 4], [17, 256, 0]]
_SUFFIX_TABLE = [[1, 32, 8], [33, 128, 4], [129, 256, 3]]
"""specctl_suffix's, by the cost of verified tokens on an H200; stock suffix takes no table."""
_TABLE = ("table",)
"""The arm of every server: the table that it starts with is the one in force."""
_Servers = dict[str, str]


def off_cost(options: argparse.Namespace) -> tuple[_Servers, list[str]]:
    table = {"num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": _OFF_TABLE}
    configs: dict[str, dict[str, Any] | None] = {
        "never enabled": None,
        "specctl_suffix at 0": {"method": "specctl_suffix", **table},
        "ngram at 0": {"method": "ngram", "prompt_lookup_max": 4, **table},
        "ngram_gpu at 0": {"method": "ngram_gpu", "prompt_lookup_max": 4, **table},
    }
    if options.draft:
        eagle3 = {"method": "eagle3", "model": options.draft, **table}
        configs |= {"eagle3 at 0": eagle3, "eagle3 at 0, steered": {**eagle3, "specctl": {}}}
    if options.peagle:
        head = {"model": options.peagle, **table}
        configs |= {
            f"{method} at 0": {"method": method, **head} for method in ("specctl_peagle", "specctl_hybrid")
        }
    return _servers(options, configs), loads(options, _TABLE, "chat", [128, 256])


def copying(options: argparse.Namespace) -> tuple[_Servers, list[str]]:
    ours = {"method": "specctl_suffix", "num_speculative_tokens": 8, "use_global": False}
    stock = {"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_cached_requests": 0}
    configs = {
        "off": None,
        "suffix": stock,
        "specctl_suffix": {**ours, "num_speculative_tokens_per_batch_size": _SUFFIX_TABLE},
        "specctl_suffix, adaptive": {**ours, "enable_adaptive_verification": True},
    }
    return _servers(options, configs), loads(options, _TABLE, "copying", [1, 4, 16, 64, 256])


def peagle(options: argparse.Namespace) -> tuple[_Servers, list[str]]:
    head = {"model": options.peagle, "num_speculative_tokens": 5}
    configs = {
        "off": None,
        "peagle": {"method": "eagle3", "parallel_drafting": True, **head},
        "specctl_peagle": {"method": "specctl_peagle", **head},
        "specctl_hybrid": {"method": "specctl_hybrid", **head},
        "eagle3": {"method": "eagle3", "model": options.draft, "num_speculative_tokens": 5},
    }
    return _servers(options, configs), loads(options, _TABLE, "code+chat", [1, 8, 32])


def _servers(options: argparse.Namespace, configs: Mapping[str, Mapping[str, Any] | None]) -> _Servers:
    chosen = [name for name in configs if not options.arms or name in options.arms]
    share = round(0.95 / len(chosen), 3)
    return {name: vllm(options.model, configs[name], share) for name in chosen}


if __name__ == "__main__":
    parts_main(__doc__, "compare", {"off-cost": off_cost, "copying": copying, "peagle": peagle})
