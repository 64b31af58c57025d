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
    H200,
    SGLANG_COMPARE,
    Row,
    row,
)

VOCABULARIES = (32_000, 128_256, 151_936, 262_144)
NUMBERS = (8, 512, 1024, 2048)
CUTS = ("top-p", "top-k", "min-p", "top-k and top-p")
GREEDY, ONE_HOT, VERIFY_512 = "gpu-verify-greedy.json", "gpu-verify-one-hot.json", "gpu-verify-512-h200.json"

ROWS: tuple[Row, ...] = (
    row(
        "time of SGLang's verification over ours, 64 requests of 8 rows: temperature; top-p; top-k and "
        "top-p",
        H200, "python -m benchmarks.gpu.sglang_verify", "gpu-sglang-verify.json", unnamed_ratios,
        *(
            ("figures", f"{cut}, 64 requests of 8 rows", "engine / specctl")
            for cut in ("temperature", "top-p", "top-k and top-p")
        ),
        digits=1,
    ),
    row(
        "tokens/s of sampled requests, vLLM, against vLLM's own verification",
        H200, "", "gpu-sampled-end-to-end.json", of_concurrent, (64, 256),
    ),
    row(
        "tokens/s of sampled requests, SGLang, against SGLang's own verification",
        H200, f"{SGLANG_COMPARE} sampled", "gpu-sglang-sampled.json",
        ratios, "runs", 0, "tokens/s against specctl_suffix-engine-kernels", "specctl_suffix",
    ),
)  # fmt: skip


def by_vocabulary() -> str:
    """Over one read of the logits."""
    head = " | ".join(f"{vocabulary:,}" for vocabulary in VOCABULARIES)
    lines = [f"| hardware | mode | {head} |", "| --- | --- |" + " --- |" * len(VOCABULARIES)]
    lines.append(_line("H200, vLLM 0.32.0", "greedy", verify_greedy(GREEDY, VOCABULARIES)))
    lines += [_line("H100", cut, verify(ONE_HOT, cut, VOCABULARIES)) for cut in ("temperature", *CUTS)]
    small, large = (verify_512(VERIFY_512, vocabulary) for vocabulary in (32_000, 151_936))
    lines += [_line("H200, vLLM 0.33.0", mode, [small[mode], "", large[mode], ""]) for mode in small]
    return "\n".join(lines)


def by_rows() -> str:
    """In us: by a search of the kept set, and by samples that are checked."""
    head = " | ".join(f"{rows:,} rows" for rows in NUMBERS)
    lines = [f"| mode | {head} |", "| --- |" + " --- |" * len(NUMBERS)]
    lines += [f"| {cut} | {' | '.join(verify_times(ONE_HOT, cut, NUMBERS))} |" for cut in CUTS]
    (flat,) = verify_times(ONE_HOT, "top-p", (512,), zipf=1.0)
    lines.append(f"| top-p of a flat distribution (Zipf 1.0) |  | {flat} |  |  |")
    return "\n".join(lines)


def _line(hardware: str, mode: str, figures: list[str]) -> str:
    return f"| {hardware} | {mode} | {' | '.join(figures)} |".replace(", 5 repeats", "")
