"""SPECCTL_PEAGLE in a scheduler of SGLang's, in this process: no server, no other process. Run by SGLang's
Python with a JSON object of its work, one scenario after the other; writes what came of each as JSON.

    {"target": FOLDER, "head": FOLDER, "drafts": K, "out": FILE, "scenarios": [{...}, ...],
     "more": [FLAG, ...]}

A scenario: prompts (token ids), each ``apart`` steps after the one before it, tokens of each answer, table
values, the next one every ``every`` steps, sampling parameters, and whether drafts find room behind prompts.
A table value is a number of drafts, or [number, sampled number, every so many steps].
Its result: for each prompt the output ids and its steps, each with the drafts that were verified, how many of
them were accepted, and how many are reported as drafted; and how many steps were counted, by drafts, whether
they come after a rest, and whether they are samples.
"""

import json
import sys

from support.sglang_scheduler import InProcess


class Run(InProcess):
    def __init__(self, target, head, drafts, more):
        flags = ["--speculative-draft-model-path", head, "--max-running-requests", "8", *more]
        super().__init__(target, "SPECCTL_PEAGLE", drafts, flags)
        self.steps = {}
        self._watch(self.scheduler.draft_worker)

    def _watch(self, worker):
        """Who verified which drafts; what was accepted is in the result."""
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
                drafted = worker.specctl.current.drafted
                for number, emitted in enumerate(result.accept_lens.tolist()):
                    one = verified[number], emitted - 1, drafted[number]
                    self.steps[batch.reqs[number].rid].append(one)
            return result

        drafter.draft, worker.forward_batch_generation = watched_draft, watched_forward

    def answer(self, prompts, tokens, values, every, apart, sampling, has_room):
        worker = self.scheduler.draft_worker
        vars(worker).pop("before_launch", None)
        if not has_room:
            worker.draft_worker.has_room, worker.before_launch = False, lambda batch: None
        self.steps, requests, at = {}, [], 0
        before = self.counted()
        while len(requests) < len(prompts) or not all(request.finished() for request in requests):
            while len(requests) < len(prompts) and at >= apart * len(requests):
                rid = str(len(requests))
                self.steps[rid] = []
                options = {"temperature": 0} | sampling
                requests.append(self.arrive(rid, prompts[len(requests)], tokens, options))
            if at % every == 0:
                value = values[at // every % len(values)]
                number, *sample = value if isinstance(value, list) else [value]
                self.put(number, 1, *sample)
            at += 1
            self.step()
        self.step()
        outputs = [list(request.output_ids[:tokens]) for request in requests]
        counted = [[*key, count - before.get(key, 0)] for key, count in self.counted().items()]
        steps = [self.steps[request.rid] for request in requests]
        return {"outputs": outputs, "steps": steps, "counted": counted}

    def counted(self):
        found = {}
        for cell in self.scheduler.specctl.telemetry().cells:
            for is_sampled, steps in ((True, cell.sampled_steps), (False, cell.steps - cell.sampled_steps)):
                key = cell.num_speculative_tokens, cell.after_rest, is_sampled
                if cell.decode_batch_to:
                    found[key] = found.get(key, 0) + steps
        return found


def main():
    import torch

    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    with torch.inference_mode():
        run = Run(asked["target"], asked["head"], asked["drafts"], asked["more"])
        results = [run.answer(**scenario) for scenario in asked["scenarios"]]
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    steering = run.scheduler.specctl
    report = {
        "reserved_places": get_alloc_reserve_per_decode(),
        "capabilities": json.loads(steering.capabilities.model_dump_json()),
        "lost_places": run.lost_places(),
        "guarded_steps": steering.telemetry().guarded_steps,
        "scenarios": results,
    }
    with open(asked["out"], "w", encoding="utf-8") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
