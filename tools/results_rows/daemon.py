"""What the daemon gains."""

from __future__ import annotations

from tools.results_figures import (
    cpu_phases,
    first_choices,
    front_end,
    of_rates,
    phases,
    ratio,
    regret,
    together,
    trees,
)
from tools.results_rows.row import (
    CPU,
    H100,
    H200,
    Row,
    row,
)

RATES = "python -m benchmarks.gpu.rates"
REGRET = "simulated, costs of an H200", "python -m benchmarks.regret", "simulated-regret.json"
FRONT_END = REGRET[0], "python -m benchmarks.front_end", "simulated-front-end.json"
PHASES = H200, "python -m benchmarks.gpu.phases", "gpu-phases.json"
LEARNING = H200, "python -m benchmarks.gpu.phases", "gpu-phases-outcomes-h200.json"
SLOW_HOST = H200, "python -m benchmarks.gpu.phases", "gpu-phases-slow-front-end-h200.json"
SGLANG_LOADS = H100, "specctl bench", "gpu-bench-sglang-h100.json"
SGLANG_MIXED = H100, "specctl bench", "gpu-bench-sglang-mixed-h100.json"
SGLANG_PHASES = H100, "python -m benchmarks.gpu.phases", "gpu-phases-sglang-h100.json"
CPU_PHASES = CPU, "python -m benchmarks.phases vllm", "cpu-phases.json"
SMALL_PHASES = CPU, "python -m benchmarks.phases vllm", "cpu-phases-27m-vllm.json"
DEMO = CPU, "make demo", "cpu-demo.json"
SGLANG_GEMMA = CPU, "python -m benchmarks.phases sglang", "cpu-phases-sglang.json"
SMALL_SGLANG = CPU, "python -m benchmarks.phases sglang", "cpu-phases-27m-sglang.json"
TREES = H100, "python -m benchmarks.trees --on-gpu", "gpu-trees-loads-h100.json"
LONG_TREES = H200, "python -m benchmarks.trees --on-gpu", "gpu-trees-h200.json"
RANKS = H100, "python -m benchmarks.trees --on-gpu", "gpu-trees-h100.json"


def together_row(source: tuple[str, str, str], base: str, of: str = "the same", called: str = "") -> Row:
    """called: the base in the claim's words."""
    against = called or base.replace("_", " ")
    claim = f"{of} together, against the best single static setting; against {against}"
    bound = "the best static setting of each phase against the best single one"
    return row(f"{claim}; {bound}", *source, together, base)


ROWS: tuple[Row, ...] = (
    row("closed loop: 20 load shapes at 4 to 128 requests", *REGRET, regret, "closed loop"),
    row("the same, true costs with graph staircases", *REGRET, regret, "staircase"),
    row("the same, every disturbance at once", *REGRET, regret, "all at once"),
    row("open loop, public traces", *REGRET, regret, "open loop, public traces"),
    row("loads that nothing was tuned on, closed loop, 17 of them", *REGRET, regret, "held out"),
    row("the same, every disturbance at once", *REGRET, regret, "held out, all at once"),
    row("closed loop, an HTTP server slower than the engine, 24 loads", *FRONT_END, front_end),
    row(
        "6 phases, vLLM 0.33.0, two rounds of 6 s a phase, the search included: by phase, against the "
        "best of 0, 3 and 8 drafts",
        *PHASES, phases, "to_best_static",
    ),
    row(
        "the same, against a server that never enabled speculation, by phase",
        *PHASES, phases, "to_never_enabled",
    ),
    together_row(PHASES, "never_enabled", "all phases"),
    row(
        "6 such phases, probabilities following the outcomes of drafts: by phase, against the best of 0, "
        "3 and 8 drafts",
        *LEARNING, phases, "to_best_static",
    ),
    together_row(LEARNING, "never_enabled"),
    row(
        "6 such phases on a host whose front end limits 256 requests (below): by phase",
        *SLOW_HOST, phases, "to_best_static",
    ),
    row("the same, against never enabled, by phase", *SLOW_HOST, phases, "to_never_enabled"),
    together_row(SLOW_HOST, "never_enabled"),
    row(
        "SGLang 0.5.23, `SPECCTL_SUFFIX`, 16 and 64 requests, three rounds of 7 s a load, answers of 48 to "
        "144 tokens, the search included: by load, against the best of 0, 3 and 8 drafts",
        *SGLANG_LOADS, phases, "to_best_static",
    ),
    row("the same, against 0 drafts, by load", *SGLANG_LOADS, phases, "to_off"),
    together_row(SGLANG_LOADS, "off", called="0 drafts"),
    row(
        "the same with requests that copy and requests that chat, half of each: by load, against the best of "
        "0, 3 and 8 drafts",
        *SGLANG_MIXED, phases, "to_best_static",
    ),
    row("the same, against 0 drafts, by load", *SGLANG_MIXED, phases, "to_off"),
    together_row(SGLANG_MIXED, "off", called="0 drafts"),
    row(
        "6 phases of 1, 16 and 64 requests, SGLang 0.5.23, `SPECCTL_SUFFIX`, two rounds of 7 s a phase, "
        "answers of 256 tokens: by phase, against the best of 0, 3 and 8 drafts",
        *SGLANG_PHASES, phases, "to_best_static",
    ),
    row("the same, against never enabled, by phase", *SGLANG_PHASES, phases, "to_never_enabled"),
    together_row(SGLANG_PHASES, "never_enabled"),
    row(
        "chat at 256 requests, held, against never enabled",
        H200, "", "gpu-never-worse.json", ratio, "figures", "chat 256", "autotune against never enabled",
    ),
    row(
        "time per token at random arrivals, vLLM 0.33.0: EAGLE-3 with 3 drafts over the daemon (over 1: "
        "the daemon is faster)",
        H200, RATES, "gpu-rates.json", of_rates,
    ),
    *(
        row(words, H100, RATES, file, of_rates)
        for words, file in (
            ("the same, from a table of 0 drafts at every batch", "gpu-rates-from-off-h100.json"),
            ("the same, from a table of 3 drafts, one round", "gpu-rates-from-drafts-h100.json"),
        )
    ),
    row(
        "SGLang 0.5.23, EAGLE-3 with trees, runs of 14 s, answers of 48 to 144 tokens: against the best "
        "of 3 prepared settings",
        *TREES, trees, "to_best_static",
    ),
    row("the same, against off", *TREES, trees, "to_off"),
    row(
        "such a load on an H200, runs of 12 s, 3, 3 and 16 rounds: against the best of 3 prepared settings",
        *LONG_TREES, trees, "to_best_static",
    ),
    row("the same, against off", *LONG_TREES, trees, "to_off"),
    row(
        "the same at 32 at once, answers of 96 tokens, samples at 0 drafts of one step, against off",
        H200, "", "gpu-trees-32-h200.json", ratio, "32-at-once", "autotune", "against off",
    ),
    row(
        "SGLang 0.5.23, EAGLE-3: share of the tree's accepted tokens that were the draft's first choice",
        *RANKS, first_choices,
    ),
    row(
        "vLLM, Gemma 270M, by phase, against its best static setting, the search included",
        *CPU_PHASES, cpu_phases, "to_best_static",
    ),
    row("the same, against off", *CPU_PHASES, cpu_phases, "to_off"),
    together_row(CPU_PHASES, "off"),
    row(
        "the demo: that model in phases of 12 s, 9 rounds: by phase, against the best of 0, 3 and 8 drafts",
        *DEMO, cpu_phases, "to_best_static",
    ),
    row("the same, against off", *DEMO, cpu_phases, "to_off"),
    together_row(DEMO, "off"),
    row("vLLM, a Llama of 27 M, so", *SMALL_PHASES, cpu_phases, "to_best_static"),
    row("the same, against off", *SMALL_PHASES, cpu_phases, "to_off"),
    together_row(SMALL_PHASES, "off"),
    row("SGLang, Gemma 270M, so", *SGLANG_GEMMA, cpu_phases, "to_best_static"),
    row("the same, against off", *SGLANG_GEMMA, cpu_phases, "to_off"),
    together_row(SGLANG_GEMMA, "off"),
    row("SGLang, the Llama of 27 M, so", *SMALL_SGLANG, cpu_phases, "to_best_static"),
    row("the same, against off", *SMALL_SGLANG, cpu_phases, "to_off"),
    together_row(SMALL_SGLANG, "off"),
    row(
        "300 servers polled once a second: CPU seconds of the daemon in a second",
        "1 CPU core", "python benchmarks/many_targets.py --targets 300 --core 0", "many-targets.json",
        ratio, "runs", 0, "cpu_s_per_s",
    ),
)  # fmt: skip
