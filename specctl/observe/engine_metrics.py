"""Names of what the engines tell in their own Prometheus text: the one place for them.

As in vLLM 0.32 and SGLang 0.5.21. SGLang counts a request's tokens when it has finished, tells nothing of
drafted or accepted tokens that could be summed, and refreshes its gauges every 40 decode steps (its option
--decode-log-interval): a look at a stock SGLang server is coarse. A request that is not streamed tells of its
first token with its 50th or its last; the wait that it adds goes until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specctl.errors import TargetError

__all__ = ["NO_METRICS", "SGLANG", "VLLM", "EngineMetrics", "metrics_of"]

NO_METRICS = "is this an engine? SGLang tells its own with --enable-metrics only"
"""Said where a server has no page, or another one."""


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Full names of samples; of histograms, without _bucket, _count and _sum. None: the engine has no such.

    ``prompt_tokens``: of requests that have started; ``kv_cache_used_ratio``: a share, 0.5 is half.
    ``begins_empty``: a request's counters are not on the page before the first request.
    """

    prefix: str
    running: str
    waiting: str
    kv_cache_used_ratio: str
    generated_tokens: str
    first_token_wait: str
    prompt_lengths: str
    output_lengths: str
    prompt_tokens: str | None = None
    engine_steps: str | None = None
    drafts: str | None = None
    drafted_tokens: str | None = None
    accepted_tokens: str | None = None
    accepted_at: str | None = None
    begins_empty: bool = False

    def is_share(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a sample is one priority's share of a gauge that is told as a whole too (SGLang with
        --enable-priority-scheduling)."""
        return name in (self.running, self.waiting) and bool(labels.get("priority"))


VLLM = EngineMetrics(
    prefix="vllm:",
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    kv_cache_used_ratio="vllm:kv_cache_usage_perc",
    generated_tokens="vllm:generation_tokens_total",
    first_token_wait="vllm:time_to_first_token_seconds",
    prompt_lengths="vllm:request_prompt_tokens",
    output_lengths="vllm:request_generation_tokens",
    prompt_tokens="vllm:prompt_tokens_total",
    engine_steps="vllm:iteration_tokens_total_count",
    drafts="vllm:spec_decode_num_drafts_total",
    drafted_tokens="vllm:spec_decode_num_draft_tokens_total",
    accepted_tokens="vllm:spec_decode_num_accepted_tokens_total",
    accepted_at="vllm:spec_decode_num_accepted_tokens_per_pos_total",
)
SGLANG = EngineMetrics(
    prefix="sglang:",
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    kv_cache_used_ratio="sglang:token_usage",
    generated_tokens="sglang:generation_tokens_total",
    first_token_wait="sglang:time_to_first_token_seconds",
    prompt_lengths="sglang:prompt_tokens_histogram",
    output_lengths="sglang:generation_tokens_histogram",
    begins_empty=True,
)


def metrics_of(text: str) -> EngineMetrics:
    """Of the engine whose page it is. Raises TargetError where it is none's."""
    for names in (VLLM, SGLANG):
        if names.prefix in text:
            return names
    raise TargetError(f"/metrics holds no metric whose name starts with vllm: or sglang: ({NO_METRICS})")
