"""One engine in a process of its own, told by lines of JSON what to run: one of support.gpu_arms.

    python gpu_engine_arm.py '{"model": ..., "engine": {...}}'

In: {"prompts": [[ids], ...], "max_tokens": n, "num_speculative_tokens": k, "class_limits": [...], "sampling":
{...}, "kinds": [...]}; all but the first two may be missing: what goes into specctl's table, further
SamplingParams (greedy without), and the kind that each request names. Out, after ARM:
{"outputs", "telemetry", "logprobs"}: specctl's, where "wants_telemetry" is
given, and of each answer's first token, {id: value}, where the sampling asks for logprobs.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def answer(**values: Any) -> None:
    print("ARM " + json.dumps(values), flush=True)


def set_table(
    llm: Any, num_speculative_tokens: int, class_limits: list[dict[str, Any]] | None = None
) -> None:
    core = llm.llm_engine.engine_core
    before = json.loads(core.call_utility("specctl_call", "table", ""))["body"]
    change = {
        "base_version": before["version"],
        "rows": [{"decode_batch_from": 1, "num_speculative_tokens": num_speculative_tokens}],
        "fallback_num_speculative_tokens": num_speculative_tokens,
        "owner": "benchmark",
    } | ({"class_limits": class_limits} if class_limits else {})
    answered = json.loads(core.call_utility("specctl_call", "put_table", json.dumps(change)))
    if answered["status"] != 200:
        raise RuntimeError(str(answered))


def telemetry(llm: Any) -> Any:
    return json.loads(llm.llm_engine.engine_core.call_utility("specctl_call", "telemetry", ""))["body"]


def first_logprobs(finished: Any) -> dict[int, float]:
    return {token: found.logprob for token, found in finished.outputs[0].logprobs[0].items()}


def main() -> None:
    from vllm import LLM, SamplingParams

    settings = json.loads(sys.argv[1])
    started_s = time.perf_counter()
    llm = LLM(model=settings["model"], disable_log_stats=False, **settings["engine"])
    answer(ready_s=time.perf_counter() - started_s)
    for line in sys.stdin:
        work = json.loads(line)
        if work.get("num_speculative_tokens") is not None:
            set_table(llm, work["num_speculative_tokens"], work.get("class_limits"))
        chosen = {"temperature": 0.0, **work.get("sampling", {})}
        common = {"max_tokens": work["max_tokens"], "ignore_eos": True, "detokenize": False, **chosen}
        sampling: Any = SamplingParams(**common)
        if "kinds" in work:
            sampling = [SamplingParams(**common, extra_args={"specctl_kind": kind}) for kind in work["kinds"]]
        prompts: Any = [{"prompt_token_ids": ids} for ids in work["prompts"]]
        finished = llm.generate(prompts, sampling, use_tqdm=False)
        outputs = [list(one.outputs[0].token_ids) for one in finished]
        answer(
            outputs=outputs if work.get("wants_outputs") else None,
            telemetry=telemetry(llm) if work.get("wants_telemetry") else None,
            logprobs=[first_logprobs(one) for one in finished] if "logprobs" in chosen else None,
        )


if __name__ == "__main__":
    main()
