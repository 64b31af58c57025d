"""The rows of ``docs/results.md``: claim, figure, hardware, command, file. A new result is a new row here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tools.results_figures import (
    ONE_HOT,
    cpu_phases,
    differing,
    first_choices,
    gate,
    hybrid,
    hybrid_heads,
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
    trees,
    verify,
    verify_512,
    verify_greedy,
    verify_times,
)

H200 = "1 H200"
H100 = "1 H100"
H100_X2 = "2 H100"
CPU = "2 CPU cores"
SIMULATED = "simulated, costs of an H200"


class Row(NamedTuple):
    claim: str
    figure: Callable[[], str]
    hardware: str
    # Empty: the file alone names it, since the benchmark is not kept.
    command: str
    file: str


SUFFIX = "gpu-suffix-copying.json"
GATE = ("figures", "gate")
STOCK = ("figures", "tokens/s against stock", "specctl_suffix")
KERNELS = "make bench-kernels"
HYBRID = CPU, "python -m benchmarks.hybrid", "cpu-hybrid.json"
RATES = "python -m benchmarks.gpu.rates"

# Hardware, command and file of several rows.
REGRET = SIMULATED, "python -m benchmarks.regret", "simulated-regret.json"
PHASES = H200, "python -m benchmarks.gpu.phases", "gpu-phases.json"
SGLANG_COMPARE = "python -m benchmarks.gpu.sglang_compare"
TREES = H100, "python -m benchmarks.trees --on-gpu", "gpu-trees-h100.json"
OFF_COST = H200, "python -m benchmarks.gpu.compare off-cost", "gpu-off-cost.json"
TENSOR_PARALLEL = H100_X2, "python -m benchmarks.gpu.compare copying", "gpu-tensor-parallel.json"
SUFFIX_H200 = H200, "python -m benchmarks.gpu.compare copying", "gpu-suffix-h200.json"
BY_KERNEL = H100, "python -m benchmarks.gpu.verify_by_kernel", ONE_HOT
CPU_PHASES = CPU, "python -m benchmarks.phases vllm", "cpu-phases.json"
PEAGLE_SGLANG = H200, "python -m benchmarks.gpu.sglang_compare peagle", "gpu-sglang-peagle.json"
BY_KIND = CPU, "python -m benchmarks.suffix_calibration", "cpu-suffix-calibration.json"

TABLES: dict[str, tuple[Row, ...]] = {
    "unchanged": (
        Row(
            "`specctl_suffix`, greedy, a new table every 0.5 s, against 0 drafts",
            lambda: differing("cpu-lossless.json"),
            f"{CPU}, float32",
            "python -m testing.lossless --prompts 200",
            "cpu-lossless.json",
        ),
        Row(
            "`specctl_suffix`, 8B shape in bf16, against off; the rest are ties",
            lambda: (
                f"{gate(SUFFIX, *GATE, 'specctl_suffix')} equal; stock suffix {gate(SUFFIX, *GATE, 'suffix')}"
            ),
            H200,
            "python -m benchmarks.gpu.compare copying",
            SUFFIX,
        ),
        Row(
            "vLLM 0.33.0: start, live table, greedy tokens of 0 drafts, our kernels, an entry that raises",
            lambda: smoke("vllm 0.33.0, runner V2, float32"),
            H100,
            "python -m pytest -m gpu tests/gpu/test_serve_on_device.py",
            "gpu-smoke.json",
        ),
        Row(
            "SGLang 0.5.23, the same, in float16",
            lambda: smoke("sglang 0.5.23, fa3, float16"),
            H100,
            "python -m pytest -m gpu tests/gpu/test_sglang_on_device.py",
            "gpu-smoke.json",
        ),
        *(
            Row(
                "SGLang 0.5.23, 8B shape in bf16: greedy answers as at 0 drafts, at full, 0 and full drafts",
                partial(smoke_sglang, name),
                hardware,
                "",
                name,
            )
            for hardware, name in (
                (H200, "gpu-sglang-smoke-h200.json"),
                (H100, "gpu-sglang-smoke-h100.json"),
            )
        ),
        Row(
            "vLLM 0.33.0, runner V2: `specctl_hybrid` by head: start, live table, greedy tokens of 0 drafts",
            hybrid_heads,
            f"{H200}, float32",
            "python -m pytest -m gpu tests/gpu/test_serve_on_device.py -k hybrid",
            "gpu-hybrid-heads-h200.json",
        ),
        Row(
            "`specctl_suffix`, two tensor-parallel ranks, vLLM 0.33.0, 8B shape in bf16: greedy answers as "
            "at 0 drafts, held and with a new table every 0.4 s",
            tensor_parallel_answers,
            H100_X2,
            "",
            "gpu-tensor-parallel.json",
        ),
    ),
    "daemon": (
        Row(
            "closed loop: 20 load shapes at 4 to 128 requests",
            lambda: regret("closed loop"),
            *REGRET,
        ),
        Row(
            "the same, true costs with graph staircases",
            lambda: regret("staircase"),
            *REGRET,
        ),
        Row(
            "the same, every disturbance at once",
            lambda: regret("all at once"),
            *REGRET,
        ),
        Row(
            "open loop, public traces",
            lambda: regret("open loop, public traces"),
            *REGRET,
        ),
        Row(
            "6 phases, vLLM 0.33.0, two rounds of 6 s a phase, the search included: by phase, against the "
            "best of 0, 3 and 8 drafts",
            lambda: phases("to_best_static"),
            *PHASES,
        ),
        Row(
            "the same, against a server that never enabled speculation, by phase",
            lambda: phases("to_never_enabled"),
            *PHASES,
        ),
        Row(
            "all phases together, against the best single static setting; against never enabled",
            lambda: "; ".join(
                ratio("gpu-phases.json", "all phases", measure)
                for measure in ("to_best_static", "to_never_enabled")
            ),
            *PHASES,
        ),
        Row(
            "chat at 256 requests, held, against never enabled",
            lambda: ratio("gpu-never-worse.json", "figures", "chat 256", "autotune against never enabled"),
            H200,
            "",
            "gpu-never-worse.json",
        ),
        Row(
            "time per token at random arrivals, vLLM 0.33.0: EAGLE-3 with 3 drafts over the daemon (over 1: "
            "the daemon is faster)",
            lambda: of_rates("gpu-rates.json"),
            H200,
            RATES,
            "gpu-rates.json",
        ),
        *(
            Row(words, partial(of_rates, name), H100, RATES, name)
            for words, name in (
                ("the same, from a table of 0 drafts at every batch", "gpu-rates-from-off-h100.json"),
                ("the same, from a table of 3 drafts, one round", "gpu-rates-from-drafts-h100.json"),
            )
        ),
        Row(
            "SGLang 0.5.23, EAGLE-3 with trees, runs of 14 s, answers of 48 to 144 tokens: against the best "
            "of 3 prepared settings",
            lambda: trees("to_best_static"),
            *TREES,
        ),
        Row("the same, against off", lambda: trees("to_off"), *TREES),
        Row(
            "the same at 32 at once, answers of 96 tokens, samples at 0 drafts of one step, against off",
            lambda: ratio("gpu-trees-32-h200.json", "32-at-once", "autotune", "against off"),
            H200,
            "",
            "gpu-trees-32-h200.json",
        ),
        Row(
            "SGLang 0.5.23, EAGLE-3: share of the tree's accepted tokens that were the draft's first choice",
            first_choices,
            *TREES,
        ),
        Row(
            "vLLM, Gemma 270M, by phase, against its best static setting, the search included",
            lambda: cpu_phases("to_best_static"),
            *CPU_PHASES,
        ),
        Row(
            "the same, against off",
            lambda: cpu_phases("to_off"),
            *CPU_PHASES,
        ),
        Row(
            "300 servers polled once a second: CPU seconds of the daemon in a second",
            lambda: ratio("many-targets.json", "runs", 0, "cpu_s_per_s"),
            "1 CPU core",
            "python benchmarks/many_targets.py --targets 300 --core 0",
            "many-targets.json",
        ),
    ),
    "off": (
        Row(
            "`specctl_suffix` at 0 drafts, vLLM, against never enabled",
            lambda: ratios(
                "gpu-off-cost.json", "runs", 2, "against never enabled", "specctl_suffix, live table at 0"
            ),
            *OFF_COST,
        ),
        Row(
            "stock `eagle3` at 0 drafts, steered: its head runs every 32 steps",
            lambda: ratios("gpu-off-cost.json", "runs", 3, "against never enabled", "eagle3, spared at 0"),
            *OFF_COST,
        ),
        Row(
            "stock `ngram` at 0 drafts: it has no asynchronous scheduling",
            lambda: ratios("gpu-off-cost.json", "runs", 0, "against never enabled", "ngram at 0"),
            *OFF_COST,
        ),
        *(
            Row(
                f"{words}, vLLM 0.33.0, answers of 512 tokens",
                partial(of_loads, name, server, "never enabled"),
                H200,
                "python -m benchmarks.gpu.compare off-cost",
                name,
            )
            for words, server, name in (
                ("`specctl_suffix` at 0 drafts", "specctl_suffix at 0", "gpu-off-cost-h200.json"),
                ("`specctl_peagle` at 0 drafts", "specctl_peagle at 0", "gpu-off-cost-peagle-h200.json"),
                ("`eagle3` at 0 drafts, steered", "eagle3 at 0, steered", "gpu-off-cost-h200.json"),
            )
        ),
        *(
            Row(
                f"{words} at 0 drafts, vLLM 0.33.0, answers of 400 tokens",
                partial(of_loads, "gpu-off-cost-eagle3-h200.json", server, "never enabled"),
                H200,
                "python -m benchmarks.gpu.compare off-cost",
                "gpu-off-cost-eagle3-h200.json",
            )
            for words, server in (
                ("`eagle3`, steered,", "eagle3 at 0, steered"),
                ("`specctl_hybrid` with an EAGLE-3 head", "specctl_hybrid with an EAGLE-3 head at 0"),
            )
        ),
        Row(
            "`eagle3`, steered, at 0 drafts, vLLM 0.33.0, answers of 400 tokens",
            lambda: of_loads("gpu-off-cost-eagle3-h100.json", "eagle3 at 0, steered", "never enabled"),
            H100,
            "python -m benchmarks.gpu.compare off-cost",
            "gpu-off-cost-eagle3-h100.json",
        ),
        Row(
            "acceptance after 200 tokens at 0 drafts, against a head that never rested",
            resumed,
            CPU,
            "python -m benchmarks.resume",
            "cpu-resume.json",
        ),
        Row(
            "what the agreement of two mixture-of-experts ranks takes of a step, us",
            lambda: ratio("cpu-rank-agreement.json", "difference", digits=0),
            CPU,
            "python -m benchmarks.rank_agreement",
            "cpu-rank-agreement.json",
        ),
        Row(
            "`SPECCTL_SUFFIX` at 0 drafts, SGLang, against never enabled",
            lambda: ratios("gpu-sglang-off.json", "tokens/s against off", "specctl_suffix"),
            H200,
            f"{SGLANG_COMPARE} off",
            "gpu-sglang-off.json",
        ),
        *(
            Row(
                f"`{server}` at 0 drafts, SGLang 0.5.23, answers of 512 tokens",
                partial(of_loads, "gpu-sglang-off-h200.json", f"{server} at 0", "never enabled"),
                H200,
                f"{SGLANG_COMPARE} off",
                "gpu-sglang-off-h200.json",
            )
            for server in ("SPECCTL_SUFFIX", "EAGLE3")
        ),
        Row(
            "`EAGLE3` at 0 drafts, SGLang 0.5.23, answers of 384 tokens",
            partial(of_loads, "gpu-sglang-off-h100.json", "EAGLE3 at 0", "never enabled"),
            H100,
            f"{SGLANG_COMPARE} off",
            "gpu-sglang-off-h100.json",
        ),
        *(
            Row(
                f"GPU time and idle time of a step, {words}",
                partial(of_steps, name),
                hardware,
                "",
                name,
            )
            for words, hardware, name in (
                ("vLLM 0.33.0, `eagle3`", H200, "gpu-off-steps-h200.json"),
                ("SGLang 0.5.23, by server", H100, "gpu-sglang-steps-h100.json"),
            )
        ),
        Row(
            "`specctl_suffix` at 0 drafts, two tensor-parallel ranks, vLLM 0.33.0, copying, runs of 4 s",
            partial(of_loads, "gpu-tensor-parallel.json", "specctl_suffix, off", "never enabled"),
            *TENSOR_PARALLEL,
        ),
    ),
    "proposers": (
        Row(
            "`specctl_suffix` against stock `suffix` (runner V1, graphs to 512), copying prompts, whole runs",
            lambda: ratios(SUFFIX, *STOCK, keys=("1", "4", "16", "64")),
            H200,
            "python -m benchmarks.gpu.compare copying",
            SUFFIX,
        ),
        Row(
            "the same at 256 with graphs to 2,304 tokens; 256 and 512 output tokens",
            lambda: (
                ratio("gpu-adaptive.json", "runs", 0, *STOCK, "256")
                + "; "
                + ratio("gpu-suffix-wide.json", "runs", 1, *STOCK, "256")
            ),
            H200,
            "python -m benchmarks.gpu.compare copying --batch 256",
            "gpu-adaptive.json",
        ),
        Row(
            "`specctl_peagle` against stock P-EAGLE (runner V1)",
            lambda: ratios(
                "gpu-peagle.json", "runs", 2, "figures", "tokens/s against stock", "specctl_peagle"
            ),
            H200,
            "python -m benchmarks.gpu.compare peagle",
            "gpu-peagle.json",
        ),
        Row(
            "`specctl_suffix` against stock `suffix` with 8 drafts and graphs to 2,304, runs of 4 s",
            partial(of_loads, "gpu-suffix-h100.json", "specctl_suffix", "suffix"),
            H100,
            "python -m benchmarks.gpu.compare copying",
            "gpu-suffix-h100.json",
        ),
        Row(
            "`specctl_suffix` against stock `suffix` with 8 drafts (faster than with 4 at each load), runs "
            "of 3 s",
            partial(of_loads, "gpu-suffix-h200.json", "specctl_suffix", "suffix with 8 drafts"),
            *SUFFIX_H200,
        ),
        Row(
            "the same, by the time per token after the first of an answer",
            partial(
                of_loads_at,
                "gpu-suffix-h200.json",
                "specctl_suffix",
                "decode alone against suffix with 8 drafts",
            ),
            *SUFFIX_H200,
        ),
        Row(
            "the same against stock `suffix` with 4 drafts",
            partial(of_loads, "gpu-suffix-h200.json", "specctl_suffix", "suffix with 4 drafts"),
            *SUFFIX_H200,
        ),
        Row(
            "`specctl_peagle` against stock P-EAGLE, runs of 2.5 s",
            partial(of_loads, "gpu-peagle-h100.json", "specctl_peagle", "peagle"),
            H100,
            "python -m benchmarks.gpu.compare peagle",
            "gpu-peagle-h100.json",
        ),
        Row(
            "`SPECCTL_PEAGLE` against the fastest EAGLE3, token map with every token of the model",
            lambda: peagle_sglang("specctl_peagle-8-map"),
            *PEAGLE_SGLANG,
        ),
        Row(
            "the same without a token map",
            lambda: peagle_sglang("specctl_peagle-8"),
            *PEAGLE_SGLANG,
        ),
        Row(
            "`SPECCTL_SUFFIX` against stock NGRAM, copying prompts, FlashAttention 3",
            lambda: ratios("gpu-sglang-copying-fa3.json", "tokens/s against ngram", "specctl_suffix-fa3"),
            H200,
            "python -m benchmarks.gpu.sglang_compare copying",
            "gpu-sglang-copying-fa3.json",
        ),
        *(
            Row(
                f"SGLang 0.5.23: {words}",
                partial(of_loads, f"gpu-sglang-{proposer}-{card}.json", f"specctl_{proposer}", stock),
                hardware,
                f"{SGLANG_COMPARE} {comparison}",
                f"gpu-sglang-{proposer}-{card}.json",
            )
            for proposer, stock, comparison, words in (
                (
                    "peagle",
                    "eagle3",
                    "peagle",
                    "`SPECCTL_PEAGLE` against EAGLE3, both with 5 drafts, no token map",
                ),
                (
                    "suffix",
                    "ngram",
                    "copying",
                    "`SPECCTL_SUFFIX` against stock NGRAM with 8 drafts, copying prompts",
                ),
            )
            for hardware, card in ((H200, "h200"), (H100, "h100"))
        ),
        Row(
            "`specctl_hybrid` with EAGLE-3, vLLM, reference models, against its better part, 1 request",
            lambda: hybrid("1"),
            *HYBRID,
        ),
        Row("the same, 4 requests", lambda: hybrid("4"), *HYBRID),
        Row("the same, 8 requests", lambda: hybrid("8"), *HYBRID),
        Row(
            "`specctl_suffix` against vLLM's `suffix`, prompts chosen for repetition: cold, warm",
            lambda: (
                ratio("cpu.json", "figures", "copying", "cold", "specctl / stock")
                + "; "
                + ratio("cpu.json", "figures", "copying", "warm", "specctl / stock")
            ),
            CPU,
            "make bench",
            "cpu.json",
        ),
        Row(
            "`specctl_suffix` with 8 drafts, two tensor-parallel ranks, copying, against never enabled",
            partial(of_loads, "gpu-tensor-parallel.json", "specctl_suffix, always 8", "never enabled"),
            *TENSOR_PARALLEL,
        ),
        Row(
            "the same against its own 0 drafts",
            partial(of_loads_at, "gpu-tensor-parallel.json", "specctl_suffix, always 8", "against 0 drafts"),
            *TENSOR_PARALLEL,
        ),
        Row(
            "the same, tokens of a request's step",
            partial(
                of_loads_at,
                "gpu-tensor-parallel.json",
                "specctl_suffix, always 8",
                "tokens of a request's step",
            ),
            *TENSOR_PARALLEL,
        ),
        Row(
            "tokens per step of the suffix index against arctic-inference, equal drafts",
            lambda: ratio(
                "suffix.json", "figures", "replay", "8 tokens", "ratio of tokens per step", digits=3
            ),
            CPU,
            "make bench-suffix",
            "suffix.json",
        ),
        Row(
            "the same by kind of prompt, after 2,000 steps of the kind (with the built-in table)",
            lambda: suffix_kinds("tokens a step at the anchor's drafted tokens, ratio"),
            *BY_KIND,
        ),
        Row(
            "calibration error of its probabilities, so too",
            lambda: suffix_kinds("calibration error"),
            *BY_KIND,
        ),
    ),
    "kernels": (
        Row(
            "greedy, 512 rows, bf16, over one read of the logits, by vocabulary",
            verify_greedy,
            H200,
            KERNELS,
            "gpu-verify-greedy.json",
        ),
        *(
            Row(
                f"512 rows of {vocabulary:,}, bf16, vLLM 0.33.0 and triton 3.8.0, by mode",
                partial(verify_512, vocabulary),
                H200,
                "python -m benchmarks.gpu.verify_by_kernel",
                "gpu-verify-512-h200.json",
            )
            for vocabulary in (151_936, 32_000)
        ),
        Row(
            "temperature only, drafts without a distribution, the same",
            lambda: verify("temperature"),
            *BY_KERNEL,
        ),
        *(
            Row(f"{cut}, the same", partial(verify, cut), *BY_KERNEL)
            for cut in ("top-p", "top-k", "min-p", "top-k and top-p")
        ),
        *(
            Row(
                f"{cut}, us, a search of the kept set and samples that are checked",
                partial(verify_times, cut),
                *BY_KERNEL,
            )
            for cut in ("top-p", "top-k", "min-p", "top-k and top-p")
        ),
        Row(
            "top-p, the same, of a flat law (Zipf 1.0)",
            lambda: verify_times("top-p", 1.0, (512,)),
            *BY_KERNEL,
        ),
        Row(
            "against SGLang's verification, 64 requests of 8 rows: temperature; top-p; top-k and top-p",
            lambda: "; ".join(
                ratio(
                    "gpu-sglang-verify.json",
                    "figures",
                    f"{cut}, 64 requests of 8 rows",
                    "engine / specctl",
                    digits=1,
                )
                for cut in ("temperature", "top-p", "top-k and top-p")
            ),
            H200,
            "python -m benchmarks.gpu.sglang_verify",
            "gpu-sglang-verify.json",
        ),
        Row(
            "tokens/s of sampled requests, vLLM, against its own verification",
            lambda: "; ".join(
                f"{n} at once: "
                + ratio(
                    "gpu-sampled-end-to-end.json",
                    "runs",
                    0,
                    "figures",
                    f"{n} concurrent",
                    "specctl against engine",
                )
                for n in (64, 256)
            ),
            H200,
            "",
            "gpu-sampled-end-to-end.json",
        ),
        Row(
            "the same, SGLang",
            lambda: ratios(
                "gpu-sglang-sampled.json",
                "runs",
                0,
                "tokens/s against specctl_suffix-engine-kernels",
                "specctl_suffix",
            ),
            H200,
            "python -m benchmarks.gpu.sglang_compare sampled",
            "gpu-sglang-sampled.json",
        ),
    ),
}
