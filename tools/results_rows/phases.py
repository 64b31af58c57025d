"""The daemon in phases of different loads: against constant settings, and without speculation."""

from __future__ import annotations

from typing import NamedTuple

from tools.results_figures import best_by_phase, ratio, the_least_and_the_most
from tools.results_figures import cpu_phases as each
from tools.results_rows.row import CPU, H100, H200, link


class Run(NamedTuple):
    load: str
    hardware: str
    file: str
    base: str
    """never_enabled: a second server without speculation; off: 0 drafts on the server that is steered."""
    names_each: bool = False
    """Every phase and not the ends alone."""


SGLANG = "SGLang 0.5.23, `SPECCTL_SUFFIX`"
PIECES = "answers streamed in pieces of 16 tokens"
RUNS: tuple[Run, ...] = (
    Run(
        "vLLM 0.33.0, `specctl_suffix`, copying and chat at 1, 16 and 256 requests, 2 rounds of 6 s a phase, "
        f"{PIECES}, a third server idle",
        H200, "gpu-phases.json", "never_enabled",
    ),
    Run(
        "such phases, 2 rounds; the probabilities of drafts follow their outcomes; "
        f"{PIECES}",
        H200, "gpu-phases-outcomes-h200.json", "never_enabled",
    ),
    Run(
        "such phases, 6 rounds, every token streamed, a host too slow for 256 streams",
        H200, "gpu-phases-slow-front-end-h200.json", "never_enabled",
    ),
    Run(
        "vLLM 0.33.0, `specctl_suffix`, chat at 16 and 64 and copying at 64 and 256 requests, 4 rounds of "
        "6 s, every token streamed, one HTTP server",
        H200, "gpu-bench-64-h200.json", "off",
    ),
    Run(
        "vLLM 0.33.0, `specctl_suffix`, chat at 1, 64 and 256 and copying at 16, 64 and 256 requests, "
        f"3 rounds of 6 s, answers of 128 to 384 tokens, {PIECES}",
        H200, "gpu-phases-spread-h200.json", "off",
    ),
    Run(
        "vLLM 0.33.0, `specctl_suffix`, chat at 64 and 256 and copying at 16, 64 and 256 requests, answers "
        f"of 128 to 384 tokens, and chat at 64 with 48 to 144 (short), 5 rounds of 6 s, {PIECES}",
        H200, "gpu-phases-short-answers-h200.json", "off",
    ),
    Run(
        f"{SGLANG}, copying and chat at 1, 16 and 64 requests, 2 rounds of 7 s, every answer of 256 tokens",
        H100, "gpu-phases-sglang-h100.json", "never_enabled",
    ),
    Run(
        f"{SGLANG}, copying and chat at 64 requests, 3 rounds of 20 s, every answer of 256 tokens",
        H200, "gpu-phases-sglang-20s-h200.json", "never_enabled",
    ),
    Run(
        f"{SGLANG}, chat at 16 and 64 and copying at 64 requests, 3 rounds of 5 s, answers of 128 to 384 "
        "tokens, SGLang's own choice of attention and graphs",
        H200, "gpu-phases-sglang-spread-h200.json", "off",
    ),
    Run(
        f"{SGLANG}, chat and copying at 64 requests, answers of 256 tokens (equal) and of 128 to 384 "
        "(spread), 3 rounds of 6 s, FlashAttention 3, which SGLang chooses",
        H200, "gpu-phases-sglang-fa3-h200.json", "off",
    ),
    Run(
        "such phases in turn with them, Triton attention",
        H200, "gpu-phases-sglang-triton-h200.json", "off",
    ),
    Run(
        f"{SGLANG}, copying and chat at 16 and 64 requests, 3 rounds of 7 s, answers of 48 to 144 tokens",
        H100, "gpu-bench-sglang-h100.json", "off",
    ),
    Run(
        f"{SGLANG}, half of the requests copying, half chat, 3 rounds of 7 s, answers of 48 to 144 tokens",
        H100, "gpu-bench-sglang-mixed-h100.json", "off",
    ),
    Run("vLLM 0.32.0, Gemma 270M, 3 rounds of 30 s", CPU, "cpu-phases.json", "off", True),
    Run("the demo (`make demo`): Gemma 270M, 9 rounds of 12 s", CPU, "cpu-demo.json", "off", True),
    Run("vLLM 0.32.0, a Llama of 27M, 3 rounds of 30 s", CPU, "cpu-phases-27m-vllm.json", "off", True),
    Run("SGLang 0.5.23, Gemma 270M, 3 rounds of 30 s", CPU, "cpu-phases-sglang.json", "off", True),
    Run("SGLang 0.5.23, a Llama of 27M, 3 rounds of 30 s", CPU, "cpu-phases-27m-sglang.json", "off", True),
    Run(
        "the same, answers of 0.5 to 1.5 times the length",
        CPU, "cpu-phases-27m-sglang-spread.json", "off", True,
    ),
)  # fmt: skip
BASES = {"never_enabled": "never enabled", "off": "0 drafts"}


def table() -> str:
    lines = [
        "| load | hardware, file | the daemon against | by phase | all phases | bound |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for run in RUNS:
        of_phases = each if run.names_each else the_least_and_the_most
        for against, measure in (("best static", "to_best_static"), (BASES[run.base], f"to_{run.base}")):
            first = measure == "to_best_static"
            load, where = (run.load, f"{run.hardware}, {link(run.file)}") if first else ("", "")
            bound = f"{best_by_phase(run.file):.2f}" if first else ""
            together = ratio(run.file, "all phases", measure)
            lines.append(
                f"| {load} | {where} | {against} | {of_phases(run.file, measure)} | {together} | {bound} |"
            )
    return "\n".join(lines)
