"""The rows of ``docs/results.md``: claim, figure, hardware, command, file. A new result is a new row here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tools.results_figures import (
    cpu_phases,
    differing,
    equal_outputs,
    first_choices,
    hybrid,
    least_p,
    listed,
    of_concurrent,
    of_loads,
    of_loads_at,
    of_rates,
    of_steps,
    peagle_sglang,
    phases,
    ratio,
    ratios,
    regret,
    resumed,
    smoke,
    smoke_sglang,
    suffix_kinds,
    tensor_parallel_answers,
    tensor_parallel_methods,
    trees,
    unnamed_ratios,
    verify,
    verify_512,
    verify_greedy,
    verify_times,
)

H200 = "1 H200"
H100 = "1 H100"
H100_X2 = "2 H100"
H200_X2 = "2 H200"
CPU = "2 CPU cores"


class Row(NamedTuple):
    claim: str
    hardware: str
    # Empty: the file alone names it, since the benchmark is not kept.
    command: str
    file: str
    figure: Callable[[], str]


def row(
    claim: str, hardware: str, command: str, file: str, figure: Callable[..., str], *of: Any, **how: Any
) -> Row:
    """``figure`` reads the file: ``figure(file, *of, **how)``."""
    return Row(claim, hardware, command, file, partial(figure, file, *of, **how))


COMPARE = "python -m benchmarks.gpu.compare"
SGLANG_COMPARE = "python -m benchmarks.gpu.sglang_compare"
VLLM_SMOKE = "python -m pytest -m gpu tests/gpu/test_serve_on_device.py"
SGLANG_SMOKE = "python -m pytest -m gpu tests/gpu/test_sglang_on_device.py"
VERIFY_BY_KERNEL = "python -m benchmarks.gpu.verify_by_kernel"
RATES = "python -m benchmarks.gpu.rates"
STOCK = "figures", "tokens/s against stock", "specctl_suffix"
FROM_NEVER = "against never enabled"

# Hardware, command and file of several rows.
SUFFIX = H200, f"{COMPARE} copying", "gpu-suffix-copying.json"
SUFFIX_H200 = H200, f"{COMPARE} copying", "gpu-suffix-h200.json"
TENSOR_PARALLEL = H100_X2, f"{COMPARE} copying", "gpu-tensor-parallel.json"
REGRET = "simulated, costs of an H200", "python -m benchmarks.regret", "simulated-regret.json"
PHASES = H200, "python -m benchmarks.gpu.phases", "gpu-phases.json"
LEARNING = H200, "python -m benchmarks.gpu.phases", "gpu-phases-outcomes-h200.json"
SGLANG_LOADS = H100, "specctl bench", "gpu-bench-sglang-h100.json"
SGLANG_PHASES = H100, "python -m benchmarks.gpu.phases", "gpu-phases-sglang-h100.json"
CPU_PHASES = CPU, "python -m benchmarks.phases vllm", "cpu-phases.json"
SMALL_PHASES = CPU, "python -m benchmarks.phases vllm", "cpu-phases-27m-vllm.json"
TREES = H100, "python -m benchmarks.trees --on-gpu", "gpu-trees-h100.json"
HYBRID_EAGLE = f"{H200}, float32", "", "gpu-hybrid-eagle3-law-h200.json"
OFF_COST = H200, f"{COMPARE} off-cost", "gpu-off-cost.json"
OFF_COST_H200 = H200, f"{COMPARE} off-cost", "gpu-off-cost-h200.json"
OFF_COST_EAGLE = H200, f"{COMPARE} off-cost", "gpu-off-cost-eagle3-h200.json"
SGLANG_OFF = H200, f"{SGLANG_COMPARE} off", "gpu-sglang-off-h200.json"
PEAGLE_SGLANG = H200, f"{SGLANG_COMPARE} peagle", "gpu-sglang-peagle.json"
HYBRID = CPU, "python -m benchmarks.hybrid", "cpu-hybrid.json"
BY_KIND = CPU, "python -m benchmarks.suffix_calibration", "cpu-suffix-calibration.json"
BY_KERNEL = H100, VERIFY_BY_KERNEL, "gpu-verify-one-hot.json"
VERIFY_512 = H200, VERIFY_BY_KERNEL, "gpu-verify-512-h200.json"

TABLES: dict[str, tuple[Row, ...]] = {
    "unchanged": (
        row(
            "`specctl_suffix`, greedy, a new table every 0.5 s, against 0 drafts",
            f"{CPU}, float32", "python -m testing.lossless --prompts 200", "cpu-lossless.json", differing,
        ),
        row(
            "`specctl_suffix`, 8B shape in bf16, against off; the rest are ties",
            *SUFFIX, equal_outputs, "specctl_suffix", "suffix",
        ),
        row(
            "vLLM 0.33.0: start, live table, greedy tokens of 0 drafts, our kernels, an entry that raises",
            H100, VLLM_SMOKE, "gpu-smoke.json", smoke, "vllm 0.33.0, runner V2, float32",
        ),
        row(
            "SGLang 0.5.23, the same, in float16",
            H100, SGLANG_SMOKE, "gpu-smoke.json", smoke, "sglang 0.5.23, fa3, float16",
        ),
        *(
            row(
                "SGLang 0.5.23, 8B shape in bf16: greedy answers as at 0 drafts, at full, 0 and full drafts",
                hardware, "", f"gpu-sglang-smoke-{card}.json", smoke_sglang,
            )
            for hardware, card in ((H200, "h200"), (H100, "h100"))
        ),
        row(
            "vLLM 0.33.0, runner V2: `specctl_hybrid` by head: start, live table, greedy tokens of 0 drafts",
            f"{H200}, float32", f"{VLLM_SMOKE} -k hybrid", "gpu-hybrid-heads-h200.json",
            listed, "served: start, live table, greedy tokens of 0 drafts, our kernels",
        ),
        row(
            "the same with EAGLE-3: greedy answers as without speculation, by drafts",
            *HYBRID_EAGLE, listed, "greedy",
        ),
        row(
            "the same, 8,000 sampled answers at 5, 2 or 0 drafts against as many of no speculation: least p",
            *HYBRID_EAGLE, least_p,
        ),
        row(
            "vLLM 0.33.0, runner V2, and SGLang 0.5.23: other tests that need a GPU",
            H200, "", "gpu-gates-h200.json", listed, "results",
        ),
        row(
            "SGLang 0.5.23: greedy answers under every method and number of drafts as at 0 drafts",
            f"{H100}, float16", "python -m pytest -m gpu tests/gpu/test_sglang_on_device.py",
            "gpu-gates-sglang-h100.json", listed, "results",
        ),
        row(
            "`specctl_suffix`, two tensor-parallel ranks, vLLM 0.33.0, 8B shape in bf16: greedy answers as "
            "at 0 drafts, held and with a new table every 0.4 s",
            H100_X2, "", "gpu-tensor-parallel.json", tensor_parallel_answers,
        ),
        row(
            "two tensor-parallel ranks, vLLM 0.33.0: greedy answers as without speculation, at 5, 2, 0 and 5 "
            "drafts, `specctl_suffix` with a corpus and `eagle3`, steered",
            f"{H100_X2}, float32", "", "gpu-tensor-parallel-heads.json", tensor_parallel_methods,
        ),
        row(
            "two ranks of a mixture of experts that step together, vLLM 0.33.0, runner V2: greedy answers as "
            "at 0 drafts, with a new table every 0.4 s",
            f"{H200_X2}, float32", "python -m pytest -m gpu tests/gpu/test_moe_ranks_on_device.py",
            "gpu-moe-ranks-h200.json", listed, "a new table every 0.4 s",
        ),
        row(
            "the same with data-parallel attention, SGLang 0.5.23, trees and chains",
            f"{H200_X2}, float16", "python -m pytest -m gpu tests/gpu/test_sglang_ranks_on_device.py",
            "gpu-moe-ranks-sglang-h200.json", listed, "a new table every 0.4 s",
        ),
    ),
    "daemon": (
        row("closed loop: 20 load shapes at 4 to 128 requests", *REGRET, regret, "closed loop"),
        row("the same, true costs with graph staircases", *REGRET, regret, "staircase"),
        row("the same, every disturbance at once", *REGRET, regret, "all at once"),
        row("open loop, public traces", *REGRET, regret, "open loop, public traces"),
        row("loads that nothing was tuned on, closed loop, 17 of them", *REGRET, regret, "held out"),
        row("the same, every disturbance at once", *REGRET, regret, "held out, all at once"),
        row(
            "6 phases, vLLM 0.33.0, two rounds of 6 s a phase, the search included: by phase, against the "
            "best of 0, 3 and 8 drafts",
            *PHASES, phases, "to_best_static",
        ),
        row(
            "the same, against a server that never enabled speculation, by phase",
            *PHASES, phases, "to_never_enabled",
        ),
        row(
            "all phases together, against the best single static setting; against never enabled",
            *PHASES, unnamed_ratios, ("all phases", "to_best_static"), ("all phases", "to_never_enabled"),
        ),
        row(
            "6 such phases, probabilities following the outcomes of drafts: by phase, against the best of 0, "
            "3 and 8 drafts",
            *LEARNING, phases, "to_best_static",
        ),
        row(
            "the same together, against the best single static setting; against never enabled",
            *LEARNING, unnamed_ratios, ("all phases", "to_best_static"), ("all phases", "to_never_enabled"),
        ),
        row(
            "SGLang 0.5.23, `SPECCTL_SUFFIX`, 16 and 64 requests, three rounds of 7 s a load, answers of 48 to "
            "144 tokens, the search included: by load, against the best of 0, 3 and 8 drafts",
            *SGLANG_LOADS, phases, "to_best_static",
        ),
        row("the same, against 0 drafts, by load", *SGLANG_LOADS, phases, "to_off"),
        row(
            "the same together, against the best single static setting; against 0 drafts",
            *SGLANG_LOADS, unnamed_ratios, ("all phases", "to_best_static"), ("all phases", "to_off"),
        ),
        row(
            "6 phases of 1, 16 and 64 requests, SGLang 0.5.23, `SPECCTL_SUFFIX`, two rounds of 7 s a phase, "
            "answers of 256 tokens: by phase, against the best of 0, 3 and 8 drafts",
            *SGLANG_PHASES, phases, "to_best_static",
        ),
        row("the same, against never enabled, by phase", *SGLANG_PHASES, phases, "to_never_enabled"),
        row(
            "the same together, against the best single static setting; against never enabled",
            *SGLANG_PHASES, unnamed_ratios,
            ("all phases", "to_best_static"), ("all phases", "to_never_enabled"),
        ),
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
            "the same at 32 at once, answers of 96 tokens, samples at 0 drafts of one step, against off",
            H200, "", "gpu-trees-32-h200.json", ratio, "32-at-once", "autotune", "against off",
        ),
        row(
            "SGLang 0.5.23, EAGLE-3: share of the tree's accepted tokens that were the draft's first choice",
            *TREES, first_choices,
        ),
        row(
            "vLLM, Gemma 270M, by phase, against its best static setting, the search included",
            *CPU_PHASES, cpu_phases, "to_best_static",
        ),
        row("the same, against off", *CPU_PHASES, cpu_phases, "to_off"),
        row("vLLM, a Llama of 27 M, so", *SMALL_PHASES, cpu_phases, "to_best_static"),
        row("the same, against off", *SMALL_PHASES, cpu_phases, "to_off"),
        row(
            "300 servers polled once a second: CPU seconds of the daemon in a second",
            "1 CPU core", "python benchmarks/many_targets.py --targets 300 --core 0", "many-targets.json",
            ratio, "runs", 0, "cpu_s_per_s",
        ),
    ),
    "off": (
        row(
            "`specctl_suffix` at 0 drafts, vLLM, against never enabled",
            *OFF_COST, ratios, "runs", 2, FROM_NEVER, "specctl_suffix, live table at 0",
        ),
        row(
            "stock `eagle3` at 0 drafts, steered: its head runs every 32 steps",
            *OFF_COST, ratios, "runs", 3, FROM_NEVER, "eagle3, spared at 0",
        ),
        row(
            "stock `ngram` at 0 drafts: it has no asynchronous scheduling",
            *OFF_COST, ratios, "runs", 0, FROM_NEVER, "ngram at 0",
        ),
        row(
            "`specctl_suffix` at 0 drafts, vLLM 0.33.0, answers of 512 tokens",
            *OFF_COST_H200, of_loads, "specctl_suffix at 0", "never enabled",
        ),
        row(
            "`specctl_peagle` at 0 drafts, vLLM 0.33.0, answers of 512 tokens",
            H200, f"{COMPARE} off-cost", "gpu-off-cost-peagle-h200.json",
            of_loads, "specctl_peagle at 0", "never enabled",
        ),
        row(
            "`eagle3` at 0 drafts, steered, vLLM 0.33.0, answers of 512 tokens",
            *OFF_COST_H200, of_loads, "eagle3 at 0, steered", "never enabled",
        ),
        row(
            "`eagle3`, steered, at 0 drafts, vLLM 0.33.0, answers of 400 tokens",
            *OFF_COST_EAGLE, of_loads, "eagle3 at 0, steered", "never enabled",
        ),
        row(
            "`specctl_hybrid` with an EAGLE-3 head at 0 drafts, vLLM 0.33.0, answers of 400 tokens",
            *OFF_COST_EAGLE, of_loads, "specctl_hybrid with an EAGLE-3 head at 0", "never enabled",
        ),
        row(
            "`eagle3`, steered, at 0 drafts, vLLM 0.33.0, answers of 400 tokens",
            H100, f"{COMPARE} off-cost", "gpu-off-cost-eagle3-h100.json",
            of_loads, "eagle3 at 0, steered", "never enabled",
        ),
        row(
            "acceptance after 200 tokens at 0 drafts, against a head that never rested",
            CPU, "python -m benchmarks.resume", "cpu-resume.json", resumed,
        ),
        row(
            "what the agreement of two mixture-of-experts ranks takes of a step, us",
            CPU, "python -m benchmarks.rank_agreement", "cpu-rank-agreement.json",
            ratio, "difference", digits=0,
        ),
        row(
            "the same on vLLM 0.33.0, runner V2, us",
            "32 CPU cores", "python -m benchmarks.rank_agreement --runner v2", "cpu-rank-agreement-v2.json",
            ratio, "difference", digits=0,
        ),
        row(
            "the same on SGLang 0.5.23, us",
            CPU, "python -m benchmarks.rank_agreement --runner sglang", "cpu-rank-agreement-sglang.json",
            ratio, "difference", digits=0,
        ),
        row(
            "`SPECCTL_SUFFIX` at 0 drafts, SGLang, against never enabled",
            H200, f"{SGLANG_COMPARE} off", "gpu-sglang-off.json",
            ratios, "tokens/s against off", "specctl_suffix",
        ),
        *(
            row(
                f"`{server}` at 0 drafts, SGLang 0.5.23, answers of 512 tokens",
                *SGLANG_OFF, of_loads, f"{server} at 0", "never enabled",
            )
            for server in ("SPECCTL_SUFFIX", "EAGLE3")
        ),
        row(
            "`EAGLE3` at 0 drafts, SGLang 0.5.23, answers of 384 tokens",
            H100, f"{SGLANG_COMPARE} off", "gpu-sglang-off-h100.json",
            of_loads, "EAGLE3 at 0", "never enabled",
        ),
        row(
            "GPU time and idle time of a step, vLLM 0.33.0, `eagle3`",
            H200, "", "gpu-off-steps-h200.json", of_steps,
        ),
        row(
            "GPU time and idle time of a step, SGLang 0.5.23, by server",
            H100, "", "gpu-sglang-steps-h100.json", of_steps,
        ),
        row(
            "`specctl_suffix` at 0 drafts, two tensor-parallel ranks, vLLM 0.33.0, copying, runs of 4 s",
            *TENSOR_PARALLEL, of_loads, "specctl_suffix, off", "never enabled",
        ),
    ),
    "proposers": (
        row(
            "`specctl_suffix` against stock `suffix` (runner V1, graphs to 512), copying prompts, whole runs",
            *SUFFIX, ratios, *STOCK, keys=("1", "4", "16", "64"),
        ),
        Row(
            "the same at 256 with graphs to 2,304 tokens; 256 and 512 output tokens",
            H200, f"{COMPARE} copying --batch 256", "gpu-adaptive.json",
            lambda: "; ".join(
                ratio(name, "runs", run, *STOCK, "256")
                for name, run in (("gpu-adaptive.json", 0), ("gpu-suffix-wide.json", 1))
            ),
        ),
        row(
            "`specctl_peagle` against stock P-EAGLE (runner V1)",
            H200, f"{COMPARE} peagle", "gpu-peagle.json",
            ratios, "runs", 2, "figures", "tokens/s against stock", "specctl_peagle",
        ),
        row(
            "`specctl_suffix` against stock `suffix` with 8 drafts and graphs to 2,304, runs of 4 s",
            H100, f"{COMPARE} copying", "gpu-suffix-h100.json", of_loads, "specctl_suffix", "suffix",
        ),
        row(
            "`specctl_suffix` against stock `suffix` with 8 drafts (faster than with 4 at each load), runs "
            "of 3 s",
            *SUFFIX_H200, of_loads, "specctl_suffix", "suffix with 8 drafts",
        ),
        row(
            "the same, by the time per token after the first of an answer",
            *SUFFIX_H200, of_loads_at, "specctl_suffix", "decode alone against suffix with 8 drafts",
        ),
        row(
            "the same against stock `suffix` with 4 drafts",
            *SUFFIX_H200, of_loads, "specctl_suffix", "suffix with 4 drafts",
        ),
        row(
            "`specctl_peagle` against stock P-EAGLE, runs of 2.5 s",
            H100, f"{COMPARE} peagle", "gpu-peagle-h100.json", of_loads, "specctl_peagle", "peagle",
        ),
        row(
            "`SPECCTL_PEAGLE` against the fastest EAGLE3, token map with every token of the model",
            *PEAGLE_SGLANG, peagle_sglang, "specctl_peagle-8-map",
        ),
        row("the same without a token map", *PEAGLE_SGLANG, peagle_sglang, "specctl_peagle-8"),
        row(
            "`SPECCTL_SUFFIX` against stock NGRAM, copying prompts, FlashAttention 3",
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
            "`specctl_hybrid` with EAGLE-3, vLLM, reference models, against its better part, 1 request",
            *HYBRID, hybrid, "1",
        ),
        row("the same, 4 requests", *HYBRID, hybrid, "4"),
        row("the same, 8 requests", *HYBRID, hybrid, "8"),
        row(
            "`specctl_suffix` against vLLM's `suffix`, prompts chosen for repetition: cold, warm",
            CPU, "make bench", "cpu.json", unnamed_ratios,
            *(("figures", "copying", state, "specctl / stock") for state in ("cold", "warm")),
        ),
        row(
            "`specctl_suffix` with 8 drafts, two tensor-parallel ranks, copying, against never enabled",
            *TENSOR_PARALLEL, of_loads, "specctl_suffix, always 8", "never enabled",
        ),
        row(
            "the same against its own 0 drafts",
            *TENSOR_PARALLEL, of_loads_at, "specctl_suffix, always 8", "against 0 drafts",
        ),
        row(
            "the same, tokens of a request's step",
            *TENSOR_PARALLEL, of_loads_at, "specctl_suffix, always 8", "tokens of a request's step",
        ),
        row(
            "tokens per step of the suffix index against arctic-inference, equal drafts",
            CPU, "make bench-suffix", "suffix.json",
            ratio, "figures", "replay", "8 tokens", "ratio of tokens per step", digits=3,
        ),
        row(
            "the same by kind of prompt, after 2,000 steps of the kind (with the built-in table)",
            *BY_KIND, suffix_kinds, "tokens a step at the anchor's drafted tokens, ratio",
        ),
        row("calibration error of its probabilities, so too", *BY_KIND, suffix_kinds, "calibration error"),
    ),
    "kernels": (
        row(
            "greedy, 512 rows, bf16, over one read of the logits, by vocabulary",
            H200, "make bench-kernels", "gpu-verify-greedy.json", verify_greedy,
        ),
        *(
            row(
                f"512 rows of {vocabulary:,}, bf16, vLLM 0.33.0 and triton 3.8.0, by mode",
                *VERIFY_512, verify_512, vocabulary,
            )
            for vocabulary in (151_936, 32_000)
        ),
        row("temperature only, drafts without a distribution, the same", *BY_KERNEL, verify, "temperature"),
        *(
            row(f"{cut}, the same", *BY_KERNEL, verify, cut)
            for cut in ("top-p", "top-k", "min-p", "top-k and top-p")
        ),
        *(
            row(
                f"{cut}, us, a search of the kept set and samples that are checked",
                *BY_KERNEL, verify_times, cut,
            )
            for cut in ("top-p", "top-k", "min-p", "top-k and top-p")
        ),
        row("top-p, the same, of a flat law (Zipf 1.0)", *BY_KERNEL, verify_times, "top-p", 1.0, (512,)),
        row(
            "against SGLang's verification, 64 requests of 8 rows: temperature; top-p; top-k and top-p",
            H200, "python -m benchmarks.gpu.sglang_verify", "gpu-sglang-verify.json", unnamed_ratios,
            *(
                ("figures", f"{cut}, 64 requests of 8 rows", "engine / specctl")
                for cut in ("temperature", "top-p", "top-k and top-p")
            ),
            digits=1,
        ),
        row(
            "tokens/s of sampled requests, vLLM, against its own verification",
            H200, "", "gpu-sampled-end-to-end.json", of_concurrent, (64, 256),
        ),
        row(
            "the same, SGLang",
            H200, f"{SGLANG_COMPARE} sampled", "gpu-sglang-sampled.json",
            ratios, "runs", 0, "tokens/s against specctl_suffix-engine-kernels", "specctl_suffix",
        ),
    ),
}  # fmt: skip
