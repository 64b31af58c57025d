"""The exact launch command of a method on an engine."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from specctl.recommend.guide import Method

__all__ = ["Machine", "launch_words", "shell_line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """``gpu_memory_bytes`` of one GPU; None: not said. ``requests_max``: that the server allows; None:
    as many as come at once."""

    gpus: int = 1
    gpu_memory_bytes: float | None = None
    on_cpu: bool = False
    engine_version: str | None = None
    requests_max: int | None = None


def launch_words(
    method: Method,
    model: str,
    draft: Path | None,
    *,
    drafts: int,
    concurrency: int,
    context_tokens: int | None,
    machine: Machine,
) -> list[str]:
    """Assignments of the environment first, as a shell takes them."""
    environment = [f"{name}={value}" for name, value in method.environment.items()]
    make = _sglang if method.engine == "sglang" else _vllm
    return [*environment, *make(method, model, draft, drafts, concurrency, context_tokens, machine)]


def shell_line(words: list[str]) -> str:
    """One line that a shell reads as these words."""
    quoted = []
    for word in words:
        name, separator, value = word.partition("=")
        is_assignment = separator and name.isidentifier() and name.isupper()
        quoted.append(f"{name}={shlex.quote(value)}" if is_assignment else shlex.quote(word))
    return " ".join(quoted)


def _vllm(
    method: Method,
    model: str,
    draft: Path | None,
    drafts: int,
    concurrency: int,
    context_tokens: int | None,
    machine: Machine,
) -> list[str]:
    words = ["vllm", "serve", model, "--max-num-seqs", str(machine.requests_max or concurrency)]
    if context_tokens is not None:
        words += ["--max-model-len", str(context_tokens)]
    if machine.gpus > 1:
        words += ["--tensor-parallel-size", str(machine.gpus)]
    if method.is_none:
        return words
    config = {**method.config, "num_speculative_tokens": drafts}
    if draft is not None and method.draft is not None and method.draft != "mtp":
        config["model"] = str(draft)
    # The block of specctl last, as people write it.
    ordered = {
        key: config[key] for key in sorted(config, key=lambda key: (key == "specctl", key != "method"))
    }
    return [*words, "--speculative-config", json.dumps(ordered)]


def _sglang(
    method: Method,
    model: str,
    draft: Path | None,
    drafts: int,
    concurrency: int,
    context_tokens: int | None,
    machine: Machine,
) -> list[str]:
    words = ["python", "-m", "sglang.launch_server", "--model-path", model, "--enable-metrics"]
    words += ["--max-running-requests", str(machine.requests_max or concurrency)]
    if context_tokens is not None:
        words += ["--context-length", str(context_tokens)]
    if machine.gpus > 1:
        words += ["--tp-size", str(machine.gpus)]
    if machine.on_cpu:
        words += ["--device", "cpu"]
    if method.is_none:
        return words
    words += method.arguments
    if draft is not None and method.draft is not None and method.draft != "mtp":
        words += ["--speculative-draft-model-path", str(draft)]
    if method.shape == "chain":
        words += ["--speculative-num-steps", str(drafts), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(drafts + 1)]
