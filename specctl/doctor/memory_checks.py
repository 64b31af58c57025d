"""Will a launch command's parts fit into a device's memory?"""

from __future__ import annotations

from collections.abc import Iterator

from specctl.checkpoints.draft import Draft
from specctl.checkpoints.facts import ModelFacts
from specctl.checkpoints.memory import GIB, Memory, Plan, estimate
from specctl.doctor.finding import Finding, error, warning

__all__ = ["LADDERS", "memory_findings", "memory_words"]

TOKENS_LEAST = 1024
"""Of context that each of the allowed requests should have room for."""
LADDERS = {
    "vllm": "in this order: fewer --max-num-seqs; a shorter --max-model-len; --kv-cache-dtype fp8; "
    '"specctl": {"graph_tokens_max": 512}; fewer num_speculative_tokens; a smaller or quantised draft; '
    "--gpu-memory-utilization 0.95; a larger --tensor-parallel-size",
    "sglang": 'in this order: fewer --max-running-requests; a shorter --context-length; fewer "candidates" '
    'and "trees": [] in SPECCTL_SGLANG_OPTIONS; --kv-cache-dtype fp8_e4m3; a smaller --cuda-graph-max-bs; a '
    "smaller or quantised draft; another --mem-fraction-static; a larger --tp-size",
}


def memory_findings(
    plan: Plan, target: ModelFacts, draft: Draft | None, device_bytes: float, share: float
) -> Iterator[Finding]:
    """share: of the device's memory that the engine may take."""
    memory = estimate(target, draft, plan)
    room = device_bytes * share
    left_tokens = memory.tokens_within(room)
    seen = (
        f"{memory_words(memory)}; {room / GIB:.1f} GiB may be taken, which leaves {left_tokens} tokens of KV"
    )
    if left_tokens < plan.context_tokens:
        yield error(
            "memory-short",
            f"there is no room for one request of {plan.context_tokens} tokens",
            seen,
            LADDERS[plan.engine],
        )
    elif left_tokens < plan.requests * TOKENS_LEAST:
        yield warning(
            "memory-tight",
            f"{plan.requests} requests at once have less than {TOKENS_LEAST} tokens of KV cache each",
            seen,
            f"requests will be preempted and begin again; {LADDERS[plan.engine]}",
        )


def memory_words(memory: Memory) -> str:
    """The parts that count, the largest first."""
    parts = sorted(memory.fixed.items(), key=lambda part: -part[1])
    words = [f"{name} {size / GIB:.1f} GiB" for name, size in parts if size >= 0.05 * GIB]
    words.append(f"{memory.kv_token_bytes / 1024:.0f} KiB of KV for a token")
    unknown = f" (not known: {', '.join(memory.unknown)})" if memory.unknown else ""
    return "estimated: " + ", ".join(words) + unknown
