"""What the verify kernels take."""

from __future__ import annotations

from tools.results_figures import (
    of_concurrent,
    ratios,
    unnamed_ratios,
    verify,
    verify_512,
    verify_greedy,
    verify_times,
)
from tools.results_rows.row import (
    H100,
    H200,
    SGLANG_COMPARE,
    VERIFY_BY_KERNEL,
    Row,
    row,
)

BY_KERNEL = H100, VERIFY_BY_KERNEL, "gpu-verify-one-hot.json"
VERIFY_512 = H200, VERIFY_BY_KERNEL, "gpu-verify-512-h200.json"

ROWS: tuple[Row, ...] = (
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
)  # fmt: skip
