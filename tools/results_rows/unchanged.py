"""Outputs that stay as they are."""

from __future__ import annotations

from tools.results_figures import (
    differing,
    equal_outputs,
    least_p,
    listed,
    smoke,
    smoke_sglang,
    tensor_parallel_answers,
    tensor_parallel_methods,
)
from tools.results_rows.row import (
    CPU,
    H100,
    H100_X2,
    H200,
    H200_X2,
    SUFFIX,
    Row,
    row,
)

VLLM_SMOKE = "python -m pytest -m gpu tests/gpu/test_serve_on_device.py"
SGLANG_SMOKE = "python -m pytest -m gpu tests/gpu/test_sglang_on_device.py"
HYBRID_EAGLE = f"{H200}, float32", "", "gpu-hybrid-eagle3-law-h200.json"

ROWS: tuple[Row, ...] = (
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
        "vLLM 0.33.0, runner V2: suffix drafts that go on behind edits",
        H200, "", "gpu-drafts-behind-edits-h200.json", listed, "results",
    ),
    row(
        "suffix drafts that learn which tokens come true, on a GPU",
        H200, "python -m pytest tests/kernels/test_suffix_draft.py tests/vllm_plugin/test_device_outcomes.py",
        "gpu-token-odds-h200.json", listed, "results",
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
)  # fmt: skip
