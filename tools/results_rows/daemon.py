"""What the daemon gains beside the phases of ``phases.py``."""

from __future__ import annotations

from tools.results_figures import first_choices, front_end, of_rates, ratio, trees, unnamed_ratios
from tools.results_rows.row import H100, H200, Row, row

RATES = "python -m benchmarks.gpu.rates"
FRONT_END = "simulated, costs of an H200", "python -m benchmarks.front_end", "simulated-front-end.json"
ON_GPU = "python -m benchmarks.trees --on-gpu"
TREES = H100, ON_GPU, "gpu-trees-loads-h100.json"
OTHER_TREES = H100, "specctl bench", "gpu-trees-h100.json"
LONG_TREES = H200, ON_GPU, "gpu-trees-h200.json"
FOUR_TREES = H200, "specctl bench", "gpu-trees-4-h200.json"
API_SERVERS = H200, "specctl bench", "gpu-api-servers-h200.json"
EAGLE = "SGLang 0.5.23, EAGLE-3 with trees"


def of_trees(claim: str, hardware: str, command: str, file: str) -> tuple[Row, Row]:
    """Against the best prepared setting that the claim names, and against off."""
    return (
        row(f"{EAGLE}, {claim}", hardware, command, file, trees, "to_best_static"),
        row("these runs, against off", hardware, command, file, trees, "to_off"),
    )


ROWS: tuple[Row, ...] = (
    row(
        "vLLM 0.32.0, chat at 256 requests for 20 s, against never enabled",
        H200, "", "gpu-never-worse.json", ratio, "figures", "chat 256", "autotune against never enabled",
    ),
    row(
        "vLLM 0.33.0, EAGLE-3, random arrivals, pieces of 16 tokens: time per token of 3 drafts over the "
        "daemon's (over 1: the daemon is faster), from 5 drafts at the start",
        H200, RATES, "gpu-rates.json", of_rates,
    ),
    *(
        row(f"such arrivals, from {words}", H100, RATES, file, of_rates)
        for words, file in (
            ("0 drafts at the start", "gpu-rates-from-off-h100.json"),
            ("3 drafts at the start", "gpu-rates-from-drafts-h100.json"),
        )
    ),
    *of_trees("3 runs of 14 s, answers of 48 to 144 tokens, against the best of 3 prepared settings", *TREES),
    *of_trees(
        "one daemon for all loads, two idle servers on the GPU, 3 runs of 14 s, against the best of off, 4 "
        "drafts and the tree",
        *OTHER_TREES,
    ),
    *of_trees("3, 3 and 16 runs of 12 s, against the best of 3 prepared settings", *LONG_TREES),
    *of_trees(
        "8 runs of 12 s, two idle servers on the GPU, against the best of off, 4 drafts and the tree",
        *FOUR_TREES,
    ),
    *(
        row(
            f"vLLM 0.33.0, chat at 256 requests, every token streamed, {servers}, {rounds} runs of 20 s, "
            "against the best of 0, 3 and 8 drafts; against 0",
            *API_SERVERS, unnamed_ratios, (servers, "to_best_static"), (servers, "to_off"),
        )
        for servers, rounds in (("1 API server", 2), ("2 API servers", 3))
    ),
    row(
        f"{EAGLE}, 32 requests, every answer of 96 tokens, against off",
        H200, "", "gpu-trees-32-h200.json", ratio, "32-at-once", "autotune", "against off",
    ),
    row(
        f"{EAGLE}: share of accepted tokens that were the draft's first choice, by decoding requests",
        *OTHER_TREES, first_choices,
    ),
    row("closed loop, an HTTP server slower than the engine, 24 loads", *FRONT_END, front_end),
    row(
        "300 servers polled once a second: CPU seconds of the daemon in a second",
        "1 CPU core", "python benchmarks/many_targets.py --targets 300 --core 0", "many-targets.json",
        ratio, "runs", 0, "cpu_s_per_s",
    ),
)  # fmt: skip
