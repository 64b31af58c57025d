"""Accepted tokens of a draft head after a rest at 0 drafts in the middle of its requests' texts.

    python -m benchmarks.gpu.resume --model DIR --speculative JSON --prompts FILE [--output FILE]

The same prompts, greedy, once without a rest and once for each length of one. Given are the accepted tokens
for each draft, by the number of steps since drafting was asked for again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.engine_arm import counters, set_table

_ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "enable_prefix_caching": False,
    "disable_log_stats": False,
    "kv_cache_memory_bytes": 8 * 2**30,
    "gpu_memory_utilization": 0.3,
}
_WINDOWS = ((0, 4), (4, 8), (8, 16), (16, 32))


def accepted_by_window(
    llm: Any, prompts: list[list[int]], full: int, rest: tuple[int, int], tokens: int
) -> Any:
    """Accepted for each draft, in windows of steps after ``rest[1]`` steps; at rest between rest's steps."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    set_table(llm, full)
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    for number, ids in enumerate(prompts):
        engine.add_request(f"r{number}", {"prompt_token_ids": ids}, sampling)
    outputs: dict[str, list[int]] = {}
    marks: dict[int, dict[str, float]] = {}
    step = 0
    while engine.has_unfinished_requests():
        if step == rest[0] and rest[1] > rest[0]:
            set_table(llm, 0)
        if step == rest[1] and rest[1] > rest[0]:
            set_table(llm, full)
        if step - rest[1] in {bound for window in _WINDOWS for bound in window}:
            marks[step - rest[1]] = counters(llm)
        for output in engine.step():
            if output.finished:
                outputs[output.request_id] = list(output.outputs[0].token_ids)
        step += 1
    rows = {}
    for start, end in _WINDOWS:
        if start in marks and end in marks:
            drafts = marks[end]["num_drafts"] - marks[start]["num_drafts"]
            accepted = marks[end]["num_accepted_tokens"] - marks[start]["num_accepted_tokens"]
            rows[f"steps {start} to {end}"] = round(accepted / drafts, 3) if drafts else None
    return {"accepted for each draft": rows, "steps": step}, outputs


def main() -> None:
    from vllm import LLM

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--speculative", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rest", type=int, nargs="*", default=[16, 64, 200], help="steps at rest")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    speculative = json.loads(arguments.speculative)
    llm = LLM(
        model=arguments.model, max_model_len=2048, max_num_seqs=64, speculative_config=speculative, **_ENGINE
    )
    prompts = json.loads(Path(arguments.prompts).read_text(encoding="utf-8"))[: arguments.requests]
    full, figures = speculative["num_speculative_tokens"], {}
    truth: dict[str, list[int]] = {}
    for steps in (0, *arguments.rest):
        found, outputs = accepted_by_window(llm, prompts, full, (60, 60 + steps), 500)
        truth = truth or outputs
        found["outputs equal"] = sum(outputs[name] == truth[name] for name in truth)
        figures[f"{steps} steps at rest"] = found
        print(steps, found, flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
