"""SPECCTL_PEAGLE in a scheduler of SGLang's, in this process: no server, no other process. Run by SGLang's
Python with a JSON object of its work, one scenario after the other; writes what came of each as JSON.

    {"target": FOLDER, "head": FOLDER, "drafts": K, "out": FILE, "scenarios": [{...}, ...],
     "more": [FLAG, ...]}

A scenario: prompts (token ids), each ``apart`` steps after the one before it, tokens of each answer, table
values, the next one every ``every`` steps, sampling parameters, and whether drafts find room behind prompts.
Its result: for each prompt the output ids and its steps, each with the drafts that were verified, how many of
them were accepted, and how many are told as drafted.
"""

import json
import sys
from array import array

import specctl_sglang.cpu_serve  # noqa: F401  (the stand-ins have to be there before SGLang)

FLAGS = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --grammar-backend none "
    "--disable-cuda-graph --skip-server-warmup --disable-overlap-schedule --dtype float32 --log-level error "
    "--max-running-requests 8 --context-length 1024 --max-total-tokens 8192 --mem-fraction-static 0.5"
)


class Run:
    def __init__(self, target, head, drafts, more):
        from sglang.srt.managers.scheduler import Scheduler, configure_scheduler_process
        from sglang.srt.plugins import load_plugins
        from sglang.srt.plugins.hook_registry import HookRegistry
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.server_args import PortArgs, prepare_server_args
        from specctl_sglang import register

        load_plugins()
        # In a server that is done in the scheduler's process, which this one stands for.
        register._register_in_engine(None)
        HookRegistry.apply_hooks()
        flags = ["--model-path", target, "--speculative-algorithm", "SPECCTL_PEAGLE", *FLAGS.split()]
        flags += ["--speculative-draft-model-path", head, "--speculative-num-draft-tokens", str(drafts + 1)]
        flags += more
        arguments = prepare_server_args(flags)
        arguments.resolve_once()
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
        configure_scheduler_process(arguments, 0)
        self.scheduler = Scheduler(arguments, PortArgs.init_new(arguments))
        self.steps = {}
        self._watch(self.scheduler.draft_worker)

    def _watch(self, worker):
        """Who verified which drafts; what was accepted is told by the result."""
        drafter, draft, forward = (
            worker.draft_worker,
            worker.draft_worker.draft,
            worker.forward_batch_generation,
        )
        verified = []

        def watched_draft(batch, **more):
            made = draft(batch, **more)
            verified[:] = made.draft_token.view(len(batch.reqs), -1)[:, 1:].tolist()
            return made

        def watched_forward(batch, *more, **named):
            is_decode = batch.forward_mode.is_decode()
            verified[:] = [[] for _ in batch.reqs]
            result = forward(batch, *more, **named)
            if is_decode:
                told = worker.specctl.current.drafted
                for number, emitted in enumerate(result.accept_lens.tolist()):
                    one = verified[number], emitted - 1, told[number]
                    self.steps[batch.reqs[number].rid].append(one)
            return result

        drafter.draft, worker.forward_batch_generation = watched_draft, watched_forward

    def put(self, number):
        steering = self.scheduler.specctl
        change = {
            "base_version": steering.table.version,
            "rows": [{"decode_batch_from": 1, "num_speculative_tokens": number}],
            "fallback_num_speculative_tokens": 0,
            "owner": "test",
        }
        answer = json.loads(steering.handle("put_table", json.dumps(change)))
        assert answer["status"] == 200, answer

    def answer(self, prompts, tokens, values, every, apart, sampling, has_room):
        worker = self.scheduler.draft_worker
        vars(worker).pop("before_launch", None)
        if not has_room:
            worker.draft_worker.has_room, worker.before_launch = False, lambda batch: None
        from sglang.srt.sampling.sampling_params import SamplingParams

        self.steps, requests, at = {}, [], 0
        while len(requests) < len(prompts) or not all(request.finished() for request in requests):
            while len(requests) < len(prompts) and at >= apart * len(requests):
                options = {"temperature": 0} | sampling
                told = SamplingParams(max_new_tokens=tokens, ignore_eos=True, **options)
                told.normalize(None)
                requests.append(self._arrive(str(len(requests)), prompts[len(requests)], told))
            if at % every == 0:
                self.put(values[at // every % len(values)])
            at += 1
            self._step()
        self._step()
        outputs = [list(request.output_ids[:tokens]) for request in requests]
        return {"outputs": outputs, "steps": [self.steps[request.rid] for request in requests]}

    def lost_places(self):
        """Of the KV cache, which nobody has and nobody can have."""
        scheduler = self.scheduler
        free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
        return scheduler.max_total_num_tokens - free

    def _arrive(self, rid, prompt, sampling_params):
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput

        absent = ("input_text", "input_embeds", "mm_inputs", "token_type_ids", "token_ids_logprob")
        request = TokenizedGenerateReqInput(
            rid=rid,
            input_ids=array("q", prompt),
            sampling_params=sampling_params,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            stream=False,
            **dict.fromkeys(absent),
        )
        self.steps[rid] = []
        self.scheduler.process_input_requests([request])
        return self.scheduler.waiting_queue[-1]

    def _step(self):
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


def main():
    import torch

    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    with torch.inference_mode():
        run = Run(asked["target"], asked["head"], asked["drafts"], asked["more"])
        results = [run.answer(**scenario) for scenario in asked["scenarios"]]
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    steering = run.scheduler.specctl
    told = {
        "reserved_places": get_alloc_reserve_per_decode(),
        "capabilities": json.loads(steering.capabilities.model_dump_json()),
        "lost_places": run.lost_places(),
        "guarded_steps": steering.telemetry().guarded_steps,
        "scenarios": results,
    }
    with open(asked["out"], "w", encoding="utf-8") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main()
