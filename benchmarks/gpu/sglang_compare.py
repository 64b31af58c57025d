"""SGLang servers on one GPU at the same time, by one call of ``specctl bench``: tokens/s of each, by batch.

    python -m benchmarks.gpu.sglang_compare off --model FOLDER --output FILE
    python -m benchmarks.gpu.sglang_compare copying --model FOLDER --output FILE
    python -m benchmarks.gpu.sglang_compare peagle --model FOLDER --eagle3 HEAD --peagle HEAD --output FILE
    python -m benchmarks.gpu.sglang_compare sampled --model FOLDER --output FILE

off: SPECCTL_SUFFIX with a table of 0 drafts against a server that never speculates.
copying: SPECCTL_SUFFIX at 8 and at 4 drafts, stock NGRAM and no speculation.
peagle: SPECCTL_PEAGLE with 8 drafts, stock EAGLE3 with 5 and with 8, and no speculation.
sampled: requests at a temperature of 0.8 and top-p 0.95, verified by SGLang's kernels and by ours.

SPECCTL_SGLANG_PYTHON: the Python of SGLang's environment, with the plugin installed.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.gpu.serving import loads, parts_main, sglang

_DRAFTS = ("--speculative-num-draft-tokens", "9")
_OPTIONS: dict[str, Any] = {"candidates": [0, 2, 4, 8], "suffix": {"use_global": False}}
_SAMPLING = '{"temperature": 0.8, "top_p": 0.95}'
_Part = tuple[dict[str, str], list[str]]


def off(options: argparse.Namespace) -> _Part:
    servers = {"off": sglang(options.model, None), "specctl_suffix": _suffix(options)}
    return servers, loads(options, ["off"], "chat", [128, 256])


def copying(options: argparse.Namespace) -> _Part:
    servers = {
        "off": sglang(options.model, None),
        "ngram": sglang(options.model, "NGRAM", [*_DRAFTS, "--max-running-requests", "64"]),
        "specctl_suffix": _suffix(options),
    }
    return servers, loads(options, ["8", "4"], "copying", [1, 16, 64])


def peagle(options: argparse.Namespace) -> _Part:
    def eagle3(steps: int) -> str:
        words = ["--speculative-draft-model-path", options.draft, "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-steps", str(steps), "--speculative-num-draft-tokens", str(steps + 1)]
        return sglang(options.model, "EAGLE3", words)

    head = ["--speculative-draft-model-path", options.peagle, *_DRAFTS]
    servers = {
        "off": sglang(options.model, None),
        "eagle3": eagle3(5),
        "eagle3-8": eagle3(8),
        "specctl_peagle-8": sglang(options.model, "SPECCTL_PEAGLE", head),
    }
    return servers, loads(options, ["table"], "code+chat", [1, 8])


def sampled(options: argparse.Namespace) -> _Part:
    servers = {
        "specctl_suffix, engine's kernels": _suffix(options, verify="engine"),
        "specctl_suffix": _suffix(options),
    }
    return servers, [*loads(options, ["table"], "chat", [64, 256]), "--sampling", _SAMPLING]


def _suffix(options: argparse.Namespace, **more: str) -> str:
    return sglang(options.model, "SPECCTL_SUFFIX", _DRAFTS, {**_OPTIONS, **more})


if __name__ == "__main__":
    parts_main(
        __doc__, "sglang-compare", {"off": off, "copying": copying, "peagle": peagle, "sampled": sampled}
    )
