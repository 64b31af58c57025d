"""The plugin on the Python of one vLLM release, without a model: run with the release's source on PYTHONPATH.

Its reader of the command line, its config, its scheduler with a live table, and every patch. Prints one line
of JSON.
"""

import json
import logging
import sys

import torch
from specctl_vllm import register
from specctl_vllm.patches import PATCHES
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.version import __version__

from specctl.engine.guard import GUARD
from specctl.engine.patches import find, install, is_ours

DRAFTS, BLOCK, TOKEN = 4, 16, 11
NUMBERS = (4, 2, 0, 3)


def config_of(model: str) -> VllmConfig:
    asked = {"method": "specctl_suffix", "num_speculative_tokens": DRAFTS}
    arguments = EngineArgs(
        model=model, skip_tokenizer_init=True, max_model_len=256, max_num_seqs=4, enforce_eager=True,
        speculative_config=asked, load_format="dummy", dtype="float32",
    )  # fmt: skip
    return arguments.create_engine_config()


def scheduler_of(config: VllmConfig) -> Scheduler:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32)
    cache = KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], spec)])
    config.cache_config.num_gpu_blocks = 64
    scheduler_class = config.scheduler_config.get_scheduler_cls()
    made: Scheduler = scheduler_class(config, cache, StructuredOutputManager(config), BLOCK)
    return made


def step(scheduler: Scheduler) -> int:
    """Every request's drafts are accepted; returns the number of drafts of the first request."""
    output = scheduler.schedule()
    drafted = output.scheduled_spec_decode_tokens
    ids = list(output.num_scheduled_tokens)
    tokens = [[TOKEN] * (len(drafted.get(one, ())) + 1) for one in ids]
    index = {one: place for place, one in enumerate(ids)}
    scheduler.update_from_output(output, ModelRunnerOutput(ids, index, tokens))
    wanted = output.num_spec_tokens_to_schedule
    scheduler.update_draft_token_ids(DraftTokenIds(ids, [[TOKEN] * wanted for _ in ids]))
    return len(drafted.get(ids[0], ()))


def main() -> None:
    logging.disable(logging.WARNING)
    register.register()
    scheduler = scheduler_of(config_of(sys.argv[1]))
    for name in ("a", "b"):
        params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
        scheduler.add_request(Request(name, list(range(20, 40)), params, None))
    step(scheduler)
    found = []
    for number in NUMBERS:
        version = scheduler.specctl.table.version
        change = {
            "base_version": version, "owner": "test", "fallback_num_speculative_tokens": 0,
            "rows": [{"decode_batch_from": 1, "num_speculative_tokens": number}],
        }  # fmt: skip
        answer = json.loads(scheduler.specctl.handle("put_table", json.dumps(change)))
        assert answer["status"] == 200, answer
        step(scheduler)
        found.append(step(scheduler))
    telemetry = scheduler.specctl.telemetry()
    # The runners' patches come with a worker, which there is none of here.
    install(PATCHES)
    report = {
        "version": __version__,
        "drafts": found,
        "accepted": sum(sum(cell.accepted_at) for cell in telemetry.cells),
        "failures": dict(GUARD.failures),
        "patches": sum(is_ours(find(patch)) for patch in PATCHES),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
