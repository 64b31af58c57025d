"""Answers by a scheduler of SGLang's on the CPU, with drafts of SPECCTL_SUFFIX or SPECCTL_PEAGLE that our
kernels verify under Triton's interpreter, as they do on a GPU unless told otherwise. Run by SGLang's Python
with TRITON_INTERPRET=1 and a JSON object of its work, one arm after the other; writes what came of each as
JSON.

    {"target": FOLDER, "algorithm": NAME, "drafts": K, "flags": [FLAG, ...], "out": FILE,
     "arms": {NAME: {...}, ...}}

An arm: prompts (token ids), answers to each and tokens of each, sampling parameters, drafts and branches that
the table says, and whether SGLang verifies after all. Its result: the answers, prompt by prompt, and what was
counted meanwhile.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from specctl_sglang.compat import verification
from specctl_sglang.compat.verified_batches import snapshot
from support.quick_interpreter import quick_interpreter
from support.sglang_scheduler import InProcess

BY_ENGINE = "asked_by_the_test"
"""Given as the reason for SGLang's verification."""
_AT_ONCE = 32


class Run(InProcess):
    def arm(
        self,
        prompts: list[list[int]],
        answers: int,
        tokens: int,
        sampling: dict[str, float],
        table: list[int],
        by_engine: bool,
    ) -> dict[str, Any]:
        self.put(*table)
        before = self._counted()
        with _verified_by_engine(by_engine):
            asked = [prompt for prompt in prompts for _ in range(answers)]
            requests = [self.arrive(str(at), prompt, tokens, sampling) for at, prompt in enumerate(asked)]
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
    flags = ["--max-running-requests", str(_AT_ONCE), *asked["flags"]]
    # The kernels' own tests run with the checks that are left out here.
    with torch.inference_mode(), quick_interpreter(checks_overflow=False):
        run = Run(asked["target"], asked["algorithm"], asked["drafts"], flags, is_as_on_gpu=True)
        torch.manual_seed(0)  # SGLang has set one of its own
        arms = {name: run.arm(**arm) for name, arm in asked["arms"].items()}
    with open(asked["out"], "w", encoding="utf-8") as file:
        json.dump({"arms": arms, "lost_places": run.lost_places()}, file)


if __name__ == "__main__":
    main()
