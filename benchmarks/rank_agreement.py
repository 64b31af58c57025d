"""What the agreement of mixture-of-experts ranks on a number of drafts takes of a step. No server, no GPU.

    python -m benchmarks.rank_agreement [--runner v2] [--calls N] [--rounds N] [--output FILE]

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
    parser.add_argument("--runner", choices=("v1", "v2"), default="v1")
    parser.add_argument("--calls", type=int, default=2000, help="of a block")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: Any = processes.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = options.runner, f"file://{folder}/store", options.calls, options.rounds, found
        processes.spawn(_rank, arguments, RANKS, join=True)
        rounds = found.get()
    report = {f"{name}, microseconds of a call": summary([one[name] for one in rounds]) for name in rounds[0]}
    more = [one["with a wish"] - one["vLLM"] for one in rounds]
    of_all = {"ranks": RANKS, "runner": options.runner}
    write_report({**of_all, **report, "difference": summary(more)}, options.output)
    return 0


def _of_v1(rank: int) -> tuple[Any, Any]:
    """vLLM's function and ours, each as one call."""
    import torch
    from specctl_vllm.compat.rank_agreement import wrap_run_ar
    from vllm.v1.worker import dp_utils

    dp_utils._get_device_and_group = lambda _: ("cpu", torch.distributed.group.WORLD)
    config = SimpleNamespace(data_parallel_size=RANKS, data_parallel_rank=rank)
    ours = wrap_run_ar(dp_utils._run_ar)
    return (lambda: dp_utils._run_ar(False, 8, 8, 0, config)), (lambda: ours(False, 8, 8, 0, config))


def _of_v2(rank: int) -> tuple[Any, Any]:
    import torch
    from specctl_vllm.compat.rank_agreement_v2 import wrap_get_dp_group
    from vllm.distributed import utils
    from vllm.v1.worker.gpu import dp_utils

    world = torch.distributed.group.WORLD
    # vLLM 0.32 calls torch's all_reduce with the group.
    quick = getattr(utils, "cpu_all_reduce_", None)
    group = SimpleNamespace(
        cpu_group=world, rank_in_group=rank, cpu_all_reduce_=lambda table: quick(table, world)
    )
    none = dp_utils.CUDAGraphMode.NONE
    desc = dp_utils.BatchExecutionDescriptor(cg_mode=none, num_tokens=8, num_reqs=8)

    def calling(get_dp_group: Any) -> Any:
        def call() -> Any:
            dp_utils.get_dp_group = get_dp_group
            return dp_utils.sync_cudagraph_and_dp_padding(None, desc, 8, 8, 1, RANKS, rank)

        return call

    return calling(lambda: group), calling(wrap_get_dp_group(lambda: group))


def _rank(rank: int, runner: str, store: str, calls: int, rounds: int, found: Any) -> None:
    import torch
    from specctl_vllm.compat.rank_agreement import AGREEMENT
    from specctl_vllm.report import DraftWish

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    own, ours = (_of_v1 if runner == "v1" else _of_v2)(rank)

    def with_wish() -> Any:
        AGREEMENT.begin(DraftWish(3, 8 + rank, False), 3)
        return ours()

    def microseconds(function: Any, times: int) -> float:
        torch.distributed.barrier()
        started_s = time.perf_counter()
        for _ in range(times):
            function()
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
