"""Host time of specctl's part of a scheduler step: table lookup and telemetry, by decoding requests.

    python -m benchmarks.steering_time --output FILE

vLLM's own Request objects under asynchronous scheduling and no engine: all requests decode, each verifies
DRAFTS drafts and keeps two of them. A step's time is ``steering_s`` of the telemetry, medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specctl_vllm.options import OPTIONS_ENV, Options

from benchmarks.provenance import provenance, summary

DRAFTS = 5
_STEPS = 200
_ROUNDS = 9


def requests_of(count: int) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    made = {}
    for i in range(count):
        request = Request(
            request_id=f"request-{i}",
            prompt_token_ids=list(range(400)),
            sampling_params=SamplingParams(max_tokens=10_000),
            pooling_params=None,
        )
        request.num_computed_tokens = 400
        made[request.request_id] = request
    return made


def steering_of(requests: dict[str, Any]) -> Any:
    from specctl_vllm.control import steering as steering_module

    # Of CPU builds only: it looks at each request's temperature.
    steering_module.sampled_verification_problem = lambda: None
    model = SimpleNamespace(served_model_name="m", model="m", max_model_len=100_000)
    return steering_module.Steering(
        SimpleNamespace(
            requests=requests,
            running=list(requests.values()),
            waiting=[],
            kv_cache_manager=SimpleNamespace(usage=0.0),
            scheduler_config=SimpleNamespace(async_scheduling=True, max_num_seqs=256),
            vllm_config=SimpleNamespace(
                num_speculative_tokens=DRAFTS,
                speculative_config=SimpleNamespace(method="ngram_gpu", num_speculative_tokens=DRAFTS),
                parallel_config=SimpleNamespace(data_parallel_size=1),
                use_v2_model_runner=True,
                model_config=model,
            ),
        )
    )


def step_us(requests: dict[str, Any], steering: Any) -> float:
    """Mean of one round, us."""
    ids = list(requests)
    scheduled = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(ids, DRAFTS + 1),
        scheduled_spec_decode_tokens={name: [-1] * DRAFTS for name in ids},
        num_spec_tokens_to_schedule=DRAFTS,
    )
    answer = SimpleNamespace(
        sampled_token_ids=[[7, 8, 9] for _ in ids],
        req_id_to_index={name: i for i, name in enumerate(ids)},
    )
    before_s = steering.steering_s
    for _ in range(_STEPS):
        steering.before_schedule()
        steering.after_schedule(scheduled)
        steering.before_update(scheduled, answer)
        for request in requests.values():
            request.append_output_token_ids([7, 8, 9])
            request.num_computed_tokens += 3
        steering.after_update(scheduled)
    if not steering.is_active:
        raise RuntimeError("steering has stopped after an error")
    return 1e6 * (steering.steering_s - before_s) / _STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="*", default=[1, 8, 32, 128, 256])
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    os.environ[OPTIONS_ENV] = Options(method="specctl_suffix").model_dump_json()
    figures = {}
    for count in arguments.requests:
        requests = requests_of(count)
        steering = steering_of(requests)
        figures[str(count)] = summary([step_us(requests, steering) for _ in range(_ROUNDS)])
        print(count, figures[str(count)], flush=True)
    written = {"provenance": provenance(), "us per step, by requests": figures}
    arguments.output.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
