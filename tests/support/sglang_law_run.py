"""Sampled answers by a scheduler of SGLang's on the CPU, with drafts of SPECCTL_SUFFIX that our kernels
verify under Triton's interpreter. Run by SGLang's Python with TRITON_INTERPRET=1 and a JSON object of its
work, one arm after the other; writes what came of each as JSON.

    {"target": FOLDER, "drafts": K, "out": FILE, "arms": {NAME: {...}, ...}}

An arm: prompt (token ids), number of answers and tokens of each, sampling parameters, drafts and branches
that the table says, and whether SGLang verifies after all. Its result: the answers, and what was counted
meanwhile.

On a CPU the plugin offers none of this: our kernels are not installed there, and nothing is drafted for
sampled requests, as SGLang verifies those by the target's most probable token. Both are got round here; what
lies between is what runs on a GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from specctl_sglang.compat import machine, verification
from specctl_sglang.compat.verified_batches import snapshot
from specctl_sglang.options import Options
from support.quick_interpreter import quick_interpreter
from support.sglang_scheduler import InProcess
from triton.runtime import interpreter

BY_ENGINE = "asked_by_the_test"
"""Told as the reason for SGLang's verification."""
_AT_ONCE = 32


class Run(InProcess):
    def __init__(self, target: str, drafts: int) -> None:
        # Asked by the plugin's registration alone, which so installs our kernels.
        machine.has_nvidia_gpu = lambda: True
        flags = ["--max-running-requests", str(_AT_ONCE), "--speculative-eagle-topk", "4"]
        super().__init__(target, "SPECCTL_SUFFIX", drafts, flags, Options(verify="specctl"))
        from specctl_sglang.compat import steered_worker

        steered_worker.start_guarded = lambda step, batch, device: None

    def arm(
        self, prompt: list[int], answers: int, tokens: int, sampling: dict[str, float], table: list[int],
        by_engine: bool,
    ) -> dict[str, Any]:  # fmt: skip
        self.put(*table)
        before = self._counted()
        with _verified_by_engine(by_engine):
            requests = [self.arrive(str(at), prompt, tokens, sampling) for at in range(answers)]
            while not all(request.finished() for request in requests):
                self.step()
            self.step()
        after = self._counted()
        return {
            "answers": [list(request.output_ids[:tokens]) for request in requests],
            "counted": {name: value - before.get(name, 0) for name, value in after.items()},
        }

    def _counted(self) -> dict[str, float]:
        telemetry = self.scheduler.specctl.telemetry()
        cells = telemetry.cells
        return {
            "guarded_steps": telemetry.guarded_steps,
            "drafts": sum(cell.drafted_tokens for cell in cells),
            "accepted": sum(cell.accepted_tokens for cell in cells),
            "with_drafts": sum(sum(cell.drafted_at[:1]) for cell in cells),
            "with_accepted": sum(sum(cell.accepted_at[:1]) for cell in cells),
            **snapshot(),
        }


@contextmanager
def _verified_by_engine(by_engine: bool) -> Iterator[None]:
    why = verification.why_engine
    if by_engine:
        verification.why_engine = lambda *given: BY_ENGINE
    try:
        yield
    finally:
        verification.why_engine = why


def main() -> None:
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    # Checks of int32 sums, which take most of the interpreter's time; the kernels' own tests run with them.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    with torch.inference_mode(), quick_interpreter():
        run = Run(asked["target"], asked["drafts"])
        torch.manual_seed(0)  # SGLang has set one of its own
        arms = {name: run.arm(**arm) for name, arm in asked["arms"].items()}
    with open(asked["out"], "w", encoding="utf-8") as file:
        json.dump({"arms": arms, "lost_places": run.lost_places()}, file)


if __name__ == "__main__":
    main()
