"""What the proposers gain."""

from __future__ import annotations

from tools.results_figures import (
    by_load,
    hybrid,
    listed,
    of_loads,
    of_loads_at,
    peagle_sglang,
    ratio,
    ratios,
    suffix_kinds,
    unnamed_ratios,
)
from tools.results_rows.row import (
    COMPARE,
    CPU,
    H100,
    H200,
    SGLANG_COMPARE,
    SUFFIX,
    TENSOR_PARALLEL,
    Row,
    row,
)

STOCK = "figures", "tokens/s against stock", "specctl_suffix"
SUFFIX_H200 = H200, f"{COMPARE} copying", "gpu-suffix-h200.json"
PEAGLE_SGLANG = H200, f"{SGLANG_COMPARE} peagle", "gpu-sglang-peagle.json"
MIXED_GRAPHS = H200, "specctl bench", "gpu-mixed-graphs-h200.json"
HYBRID = CPU, "python -m benchmarks.hybrid", "cpu-hybrid.json"
BY_KIND = CPU, "python -m benchmarks.suffix_calibration", "cpu-suffix-calibration.json"

ROWS: tuple[Row, ...] = (
    row(
        "vLLM 0.32.0: `specctl_suffix` against stock `suffix` (runner V1, graphs to 512), copying prompts, "
        "whole runs",
        *SUFFIX, ratios, *STOCK, keys=("1", "4", "16", "64"),
    ),
    Row(
        "vLLM 0.32.0: `specctl_suffix` against stock `suffix`, graphs to 2,304 tokens, 256 requests; 256 "
        "and 512 output tokens (the latter in gpu-suffix-wide.json)",
        H200, f"{COMPARE} copying --batch 256", "gpu-adaptive.json",
        lambda: "; ".join(
            ratio(name, "runs", run, *STOCK, "256")
            for name, run in (("gpu-adaptive.json", 0), ("gpu-suffix-wide.json", 1))
        ),
    ),
    row(
        "vLLM 0.32.0: `specctl_peagle` against stock P-EAGLE (runner V1)",
        H200, f"{COMPARE} peagle", "gpu-peagle.json",
        ratios, "runs", 2, "figures", "tokens/s against stock", "specctl_peagle",
    ),
    row(
        "vLLM 0.32.0: `specctl_hybrid` with a P-EAGLE head against stock P-EAGLE, 192 output tokens",
        H200, f"{COMPARE} peagle", "gpu-peagle.json",
        ratios, "runs", 0, "figures", "tokens/s against stock", "specctl_hybrid",
    ),
    row(
        "vLLM 0.33.0: `specctl_suffix` against stock `suffix` with 8 drafts and graphs to 2,304, runs of 4 s",
        H100, f"{COMPARE} copying", "gpu-suffix-h100.json", of_loads, "specctl_suffix", "suffix",
    ),
    row(
        "vLLM 0.33.0: `specctl_suffix` against stock `suffix` with 8 drafts (faster than with 4 at each "
        "load), runs of 3 s, pieces of 16 tokens",
        *SUFFIX_H200, of_loads, "specctl_suffix", "suffix with 8 drafts",
    ),
    row(
        "these runs, by the time per token after the first of an answer",
        *SUFFIX_H200, of_loads_at, "specctl_suffix", "decode alone against suffix with 8 drafts",
    ),
    row(
        "these runs, against stock `suffix` with 4 drafts",
        *SUFFIX_H200, of_loads, "specctl_suffix", "suffix with 4 drafts",
    ),
    row(
        "vLLM 0.33.0: `specctl_peagle` against stock P-EAGLE, runs of 2.5 s",
        H100, f"{COMPARE} peagle", "gpu-peagle-h100.json", of_loads, "specctl_peagle", "peagle",
    ),
    row(
        "SGLang 0.5.21: `SPECCTL_PEAGLE` against the fastest EAGLE3, token map with every token of the model",
        *PEAGLE_SGLANG, peagle_sglang, "specctl_peagle-8-map",
    ),
    row(
        "SGLang 0.5.21: `SPECCTL_PEAGLE` without a token map against the fastest EAGLE3",
        *PEAGLE_SGLANG, peagle_sglang, "specctl_peagle-8",
    ),
    row(
        "SGLang 0.5.21: `SPECCTL_SUFFIX` against stock NGRAM, copying prompts, FlashAttention 3",
        H200, f"{SGLANG_COMPARE} copying", "gpu-sglang-copying-fa3.json",
        ratios, "tokens/s against ngram", "specctl_suffix-fa3",
    ),
    *(
        row(
            "SGLang 0.5.23: `SPECCTL_PEAGLE` against EAGLE3, both with 5 drafts, no token map",
            hardware, f"{SGLANG_COMPARE} peagle", f"gpu-sglang-peagle-{card}.json",
            of_loads, "specctl_peagle", "eagle3",
        )
        for hardware, card in ((H200, "h200"), (H100, "h100"))
    ),
    *(
        row(
            "SGLang 0.5.23: `SPECCTL_SUFFIX` against stock NGRAM with 8 drafts, copying prompts",
            hardware, f"{SGLANG_COMPARE} copying", f"gpu-sglang-suffix-{card}.json",
            of_loads, "specctl_suffix", "ngram",
        )
        for hardware, card in ((H200, "h200"), (H100, "h100"))
    ),
    row(
        "`specctl_hybrid` with EAGLE-3, vLLM 0.32.0, 27M models, against its better part, 1 request",
        *HYBRID, hybrid, "1",
    ),
    row("that hybrid, 4 requests", *HYBRID, hybrid, "4"),
    row("that hybrid, 8 requests", *HYBRID, hybrid, "8"),
    row(
        "`specctl_suffix` against vLLM's `suffix`, prompts chosen for repetition: cold, warm",
        CPU, "make bench", "cpu.json", unnamed_ratios,
        *(("figures", "copying", state, "specctl / stock") for state in ("cold", "warm")),
    ),
    row(
        "vLLM 0.33.0, two tensor-parallel ranks: `specctl_suffix` with 8 drafts, copying, pieces of 16 "
        "tokens, against never enabled",
        *TENSOR_PARALLEL, of_loads, "specctl_suffix, always 8", "never enabled",
    ),
    row(
        "these ranks, against 0 drafts on that server",
        *TENSOR_PARALLEL, of_loads_at, "specctl_suffix, always 8", "against 0 drafts",
    ),
    row(
        "these ranks: tokens of a request's step",
        *TENSOR_PARALLEL, of_loads_at, "specctl_suffix, always 8", "tokens of a request's step",
    ),
    row(
        "what drafts behind edits add to a captured call of the device's suffix drafts, us",
        H200, "", "gpu-drafts-behind-edits-h200.json", listed, "us that they add",
    ),
    row(
        "what learning the odds of tokens adds to a captured call that drafts and learns, us",
        H200, "", "gpu-token-odds-h200.json", listed, "us that they add",
    ),
    row(
        "vLLM 0.33.0, `specctl_suffix`, every token streamed: piecewise CUDA graphs for steps with a prompt "
        "beyond 512 tokens, against none there; 8 drafts",
        *MIXED_GRAPHS, by_load, "8 drafts",
    ),
    row("these graphs with 3 drafts", *MIXED_GRAPHS, by_load, "3 drafts"),
    row(
        "these graphs with 0 drafts; at 256 requests the HTTP server is behind",
        *MIXED_GRAPHS, by_load, "off",
    ),
    row(
        "tokens per step of the suffix index against arctic-inference, equal drafts",
        CPU, "make bench-suffix", "suffix.json",
        ratio, "figures", "replay", "8 tokens", "ratio of tokens per step", digits=3,
    ),
    row(
        "tokens per step by kind of prompt, after 2,000 steps of the kind (with the built-in table)",
        *BY_KIND, suffix_kinds, "tokens a step at the anchor's drafted tokens, ratio",
    ),
    row(
        "calibration error of its probabilities, after 2,000 steps of the kind (with the built-in table)",
        *BY_KIND, suffix_kinds, "calibration error",
    ),
)  # fmt: skip
