"""A scheduler of SGLang's on the CPU with one of our algorithms, in this process: no server, nothing spawned.

For scripts that tests run by SGLang's Python.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

import specctl_sglang.cpu_serve  # noqa: F401  (the stand-ins have to be there before SGLang)

__all__ = ["InProcess"]

_FLAGS = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --grammar-backend none "
    "--disable-cuda-graph --skip-server-warmup --disable-overlap-schedule --dtype float32 --log-level error "
    "--context-length 1024 --max-total-tokens 8192 --mem-fraction-static 0.9"
)


class InProcess:
    def __init__(
        self, target: str, algorithm: str, drafts: int, more: Sequence[str], *, is_as_on_gpu: bool = False
    ) -> None:
        """more: flags.

        is_as_on_gpu: our kernels verify, under Triton's interpreter, and sampled requests have drafts too,
        which they do not on a CPU, where SGLang verifies by the target's most probable token.
        """
        from sglang.srt.managers.scheduler import Scheduler, configure_scheduler_process
        from sglang.srt.plugins import load_plugins
        from sglang.srt.plugins.hook_registry import HookRegistry
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.server_args import PortArgs, prepare_server_args
        from specctl_sglang import register
        from specctl_sglang.compat import machine

        if is_as_on_gpu:
            # Asked by the plugin's registration alone, which so installs our kernels.
            machine.has_nvidia_gpu = lambda: True
        load_plugins()
        # In a server that is done in the scheduler's process, which this one stands for.
        register._register_in_engine(None)
        HookRegistry.apply_hooks()
        flags = ["--model-path", target, "--speculative-algorithm", algorithm, *_FLAGS.split()]
        flags += ["--speculative-num-draft-tokens", str(drafts + 1), *more]
        arguments = prepare_server_args(flags)
        arguments.resolve_once()
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
        configure_scheduler_process(arguments, 0)
        self.scheduler = Scheduler(arguments, PortArgs.init_new(arguments))
        if is_as_on_gpu:
            _guard_nothing()

    def put(self, number: int, topk: int = 1, sampled: int | None = None, every_steps: int = 2) -> None:
        """sampled: a chain of so many drafts, on every so many steps."""
        steering = self.scheduler.specctl
        row: dict[str, Any] = {"decode_batch_from": 1, "num_speculative_tokens": number, "tree_topk": topk}
        if sampled is not None:
            setting = {"num_speculative_tokens": sampled}
            row["sample"] = {"setting": setting, "every_steps": every_steps}
        change = {
            "base_version": steering.table.version,
            "rows": [row],
            "fallback_num_speculative_tokens": 0,
            "owner": "test",
        }
        answer = json.loads(steering.handle("put_table", json.dumps(change)))
        assert answer["status"] == 200, answer

    def lost_places(self) -> int:
        """Of the KV cache, which nobody has and nobody can have."""
        scheduler = self.scheduler
        free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
        lost: int = scheduler.max_total_num_tokens - free
        return lost

    def arrive(self, rid: str, prompt: Sequence[int], tokens: int, sampling: dict[str, Any]) -> Any:
        """The request in the scheduler's queue; sampling: beside the tokens of its answer."""
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        params = SamplingParams(max_new_tokens=tokens, ignore_eos=True, **sampling)
        params.normalize(None)
        absent = ("input_text", "input_embeds", "mm_inputs", "token_type_ids", "token_ids_logprob")
        request = TokenizedGenerateReqInput(
            rid=rid,
            input_ids=array("q", prompt),
            sampling_params=params,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            stream=False,
            **dict.fromkeys(absent),
        )
        self.scheduler.process_input_requests([request])
        return self.scheduler.waiting_queue[-1]

    def step(self) -> None:
        """As SGLang's event loop without overlap."""
        scheduler = self.scheduler
        plan = scheduler.get_next_batch_to_run(
            running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
        )
        scheduler.running_batch = plan.running_batch
        batch = plan.batch_to_run
        if batch:
            scheduler.process_batch_result(batch, scheduler.run_batch(batch))
        scheduler.last_batch = batch


def _guard_nothing() -> None:
    from specctl_sglang.compat import steered_states, steered_worker

    for module in (steered_states, steered_worker):
        module.start_guarded = lambda step, batch, device: None
