"""Host time of specctl's part of a scheduler step: table lookup and telemetry, by decoding requests.

    python -m benchmarks.steering_time --output FILE

vLLM's own Request objects under asynchronous scheduling and no engine: all requests decode, each verifies
DRAFTS drafts and keeps two of them. A step's time is ``steering_s`` of the telemetry, medians over rounds.
Requests are of CLASSES traffic classes in turn, and no two steps list them in the same order. For the pace at
which traffic classes are counted a step takes STEP_MS + STEP_US_PER_REQUEST; of the seconds of a step nothing
else depends on it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specctl_vllm.options import OPTIONS_ENV, Options

from benchmarks.provenance import provenance, summary
from specctl.engine import steering as shared_steering
from specctl.engine.request_classes import KIND_KEY

DRAFTS = 5
STEP_MS, STEP_US_PER_REQUEST = 5.0, 40.0
_STEPS = 200
_ROUNDS = 9


def requests_of(count: int, classes: int = 1) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    made = {}
    for i in range(count):
        request = Request(
            request_id=f"request-{i}",
            prompt_token_ids=list(range(400)),
            sampling_params=SamplingParams(max_tokens=10_000, extra_args={KIND_KEY: f"kind-{i % classes}"}),
            pooling_params=None,
        )
        request.num_computed_tokens = 400
        made[request.request_id] = request
    return made


class _Clock:
    """``time.monotonic`` of an engine whose steps all take as long; steering asks it twice a step."""

    def __init__(self, step_s: float) -> None:
        self._half_s, self._now_s = step_s / 2, 0.0

    def __call__(self) -> float:
        self._now_s += self._half_s
        return self._now_s


def steering_of(requests: dict[str, Any]) -> Any:
    from specctl_vllm.control import steering as steering_module

    clock = _Clock(STEP_MS / 1e3 + STEP_US_PER_REQUEST / 1e6 * len(requests))
    told = SimpleNamespace(perf_counter=time.perf_counter, monotonic=clock)
    steering_module.time = shared_steering.time = told
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
                speculative_config=SimpleNamespace(
                    method="ngram_gpu",
                    num_speculative_tokens=DRAFTS,
                    parallel_drafting=False,
                    use_multi_module_mtp=lambda: False,
                ),
                parallel_config=SimpleNamespace(data_parallel_size=1, pipeline_parallel_size=1),
                use_v2_model_runner=True,
                model_config=model,
            ),
        )
    )


def step_us(requests: dict[str, Any], steering: Any) -> float:
    """Mean of one round, us. The first step tells the requests as new ones."""
    ids = list(requests)
    scheduled = SimpleNamespace(
        scheduled_spec_decode_tokens={name: [-1] * DRAFTS for name in ids},
        num_spec_tokens_to_schedule=DRAFTS,
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in ids],
    )
    answer = SimpleNamespace(
        sampled_token_ids=[[7, 8, 9] for _ in ids],
        req_id_to_index={name: i for i, name in enumerate(ids)},
    )
    before_s = steering.steering_s
    for i in range(_STEPS):
        first = i % len(ids)
        scheduled.num_scheduled_tokens = dict.fromkeys([*ids[first:], *ids[:first]], DRAFTS + 1)
        steering.before_schedule()
        steering.after_schedule(scheduled)
        scheduled.scheduled_new_reqs = []
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
    parser.add_argument("--classes", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    os.environ[OPTIONS_ENV] = Options(method="specctl_suffix").model_dump_json()
    figures: dict[str, dict[str, Any]] = {}
    for count, classes in itertools.product(arguments.requests, arguments.classes):
        requests = requests_of(count, classes)
        steering = steering_of(requests)
        times = summary([step_us(requests, steering) for _ in range(_ROUNDS)])
        figures.setdefault(str(count), {})[str(classes)] = times
        print(count, classes, times, flush=True)
    written = {"provenance": provenance(), "us per step, by requests and classes": figures}
    arguments.output.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
