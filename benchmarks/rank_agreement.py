"""What the agreement of mixture-of-experts ranks on a number of drafts takes of a step. No server, no GPU.

    python -m benchmarks.rank_agreement [--calls N] [--rounds N] [--output FILE]

Two processes run the all-reduce by which vLLM's data-parallel ranks agree on padding, with gloo: vLLM's own
function, and specctl's, which carries every rank's wish in it. Calls of both alternate in blocks. A file has
microseconds of a call, by round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.multiprocessing as processes

from testing.provenance import summary, write_report

RANKS = 2
WARM_UP = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="of a block")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: Any = processes.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(
            _rank, (f"file://{folder}/store", options.calls, options.rounds, found), RANKS, join=True
        )
        rounds = found.get()
    report = {f"{name}, microseconds of a call": summary([one[name] for one in rounds]) for name in rounds[0]}
    more = [one["with a wish"] - one["vLLM"] for one in rounds]
    write_report({"ranks": RANKS, **report, "difference": summary(more)}, options.output)
    return 0


def _rank(rank: int, store: str, calls: int, rounds: int, found: Any) -> None:
    import torch
    from specctl_vllm.compat.rank_agreement import AGREEMENT, wrap_run_ar
    from specctl_vllm.report import DraftWish
    from vllm.v1.worker import dp_utils

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    dp_utils._get_device_and_group = lambda _: ("cpu", torch.distributed.group.WORLD)
    config = SimpleNamespace(data_parallel_size=RANKS, data_parallel_rank=rank)
    own, ours = dp_utils._run_ar, wrap_run_ar(dp_utils._run_ar)

    def with_wish(*args: Any) -> Any:
        AGREEMENT.begin(DraftWish(3, 8 + rank, False))
        return ours(*args)

    def microseconds(function: Any, times: int) -> float:
        torch.distributed.barrier()
        started_s = time.perf_counter()
        for _ in range(times):
            function(False, 8, 8, 0, config)
        return (time.perf_counter() - started_s) / times * 1e6

    arms = {"vLLM": own, "with a wish": with_wish}
    for function in arms.values():
        microseconds(function, WARM_UP)
    times_us = [
        {name: microseconds(function, calls) for name, function in arms.items()} for _ in range(rounds)
    ]
    assert AGREEMENT.agreed == DraftWish(3, 9, False)
    if rank == 0:
        found.put(times_us)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
