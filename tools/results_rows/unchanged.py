"""Outputs that stay as they are."""

from __future__ import annotations

from tools.results_figures import differing, equal_outputs, least_p, listed
from tools.results_rows.row import CPU, H200, H200_X2, SUFFIX, Row, row

HYBRID_EAGLE = f"{H200}, float32", "", "gpu-hybrid-eagle3-law-h200.json"

ROWS: tuple[Row, ...] = (
    row(
        "`specctl_suffix`, greedy, a new table every 0.5 s, against 0 drafts",
        f"{CPU}, float32", "python -m testing.lossless --prompts 200", "cpu-lossless.json", differing,
    ),
    row(
        "`specctl_suffix`, 8B-sized Llama, greedy, against off; the other answers differ at ties",
        f"{SUFFIX[0]}, bf16", *SUFFIX[1:], equal_outputs, "specctl_suffix", "suffix",
    ),
    row(
        "`specctl_hybrid` with EAGLE-3, vLLM 0.33.0: greedy answers equal to those without speculation",
        *HYBRID_EAGLE, listed, "greedy",
    ),
    row(
        "`specctl_hybrid` with EAGLE-3: 8,000 sampled answers at each number of drafts against 8,000 without "
        "speculation, least p of the chi-square tests",
        *HYBRID_EAGLE, least_p,
    ),
    row(
        "two ranks of a mixture of experts that step together, vLLM 0.33.0, a new table every 0.4 s: greedy "
        "answers equal to those at 0 drafts",
        f"{H200_X2}, float32", "", "gpu-moe-ranks-h200.json", listed, "a new table every 0.4 s",
    ),
    row(
        "two ranks with data-parallel attention, SGLang 0.5.23, trees and chains, likewise",
        f"{H200_X2}, float16", "", "gpu-moe-ranks-sglang-h200.json", listed, "a new table every 0.4 s",
    ),
)  # fmt: skip
