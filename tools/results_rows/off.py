"""What off costs."""

from __future__ import annotations

from tools.results_figures import (
    of_loads,
    of_steps,
    ratio,
    ratios,
    resumed,
    unnamed_ratios,
)
from tools.results_rows.row import (
    COMPARE,
    CPU,
    H100,
    H200,
    SGLANG_COMPARE,
    TENSOR_PARALLEL,
    Row,
    row,
)

FROM_NEVER = "against never enabled"
OFF_COST = H200, f"{COMPARE} off-cost", "gpu-off-cost.json"
OFF_COST_H200 = H200, f"{COMPARE} off-cost", "gpu-off-cost-h200.json"
OFF_COST_EAGLE = H200, f"{COMPARE} off-cost", "gpu-off-cost-eagle3-h200.json"
FRONT_END = H200, "", "gpu-front-end-h200.json"
CPU_OFF_COST = CPU, "specctl bench", "cpu-off-cost.json"
SGLANG_OFF = H200, f"{SGLANG_COMPARE} off", "gpu-sglang-off-h200.json"
STEERING = [
    ("loads", f"{drafts} drafts, {requests} at once", "this commit", "share of a step, %")
    for drafts in (0, 8)
    for requests in (8, 1)
]

ROWS: tuple[Row, ...] = (
    row(
        "`specctl_suffix` at 0 drafts, vLLM 0.32.0",
        *OFF_COST, ratios, "runs", 2, FROM_NEVER, "specctl_suffix, live table at 0",
    ),
    row(
        "stock `eagle3` at 0 drafts, steered, vLLM 0.32.0: its head runs every 32 steps",
        *OFF_COST, ratios, "runs", 3, FROM_NEVER, "eagle3, spared at 0",
    ),
    row(
        "stock `ngram` at 0 drafts, vLLM 0.32.0: it has no asynchronous scheduling",
        *OFF_COST, ratios, "runs", 0, FROM_NEVER, "ngram at 0",
    ),
    row(
        "`specctl_suffix` at 0 drafts, vLLM 0.33.0, answers of 512 tokens",
        *OFF_COST_H200, of_loads, "specctl_suffix at 0", "never enabled",
    ),
    row(
        "`specctl_suffix` at 0 drafts, vLLM 0.33.0, every token streamed: one core of the API server bounds "
        "both",
        *FRONT_END, of_loads, "specctl_suffix at 0", "never enabled",
    ),
    row(
        "`specctl_suffix` at 3 drafts, vLLM 0.33.0, every token streamed",
        *FRONT_END, of_loads, "specctl_suffix at 3", "never enabled",
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
        "such agreement on vLLM 0.33.0, runner V2, us",
        "32 CPU cores", "python -m benchmarks.rank_agreement --runner v2", "cpu-rank-agreement-v2.json",
        ratio, "difference", digits=0,
    ),
    row(
        "such agreement on SGLang 0.5.23, us",
        CPU, "python -m benchmarks.rank_agreement --runner sglang", "cpu-rank-agreement-sglang.json",
        ratio, "difference", digits=0,
    ),
    row(
        "`specctl_suffix` at 0 drafts, vLLM 0.32.0, a Llama of 27M",
        *CPU_OFF_COST, of_loads, "specctl_suffix at 0", "never enabled",
    ),
    row(
        "`specctl_suffix` at 0 drafts, asking the worker for drafts in a second call as stock vLLM does",
        *CPU_OFF_COST, of_loads, "specctl_suffix at 0, commit 8934022", "never enabled",
    ),
    row(
        "% of a step in the plugin's part of vLLM's scheduler, Model Runner V1: 0 drafts at 8 requests and "
        "at 1, 8 drafts at 8 requests and at 1",
        CPU, "", "cpu-steering.json", unnamed_ratios, *STEERING,
    ),
    row(
        "`SPECCTL_SUFFIX` at 0 drafts, SGLang 0.5.21",
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
)  # fmt: skip
