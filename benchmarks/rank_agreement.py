"""What the agreement of mixture-of-experts ranks on a number of drafts takes of a step. No server, no GPU.

    python -m benchmarks.rank_agreement [--runner v1|v2|sglang] [--calls N] [--rounds N] [--output FILE]

Two processes run the collective by which an engine's data-parallel ranks tell each other what they are about
to run, with gloo: the engine's own function, and specctl's, which carries every rank's wish in it. Calls of
both alternate in blocks. A file has microseconds of a call, by round. ``sglang`` needs SGLang's environment.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.multiprocessing as processes

from testing.provenance import summary, write_report

RANKS = 2
_STOCK, _OURS = "stock", "with a wish"
WARM_UP = 200
Calls = tuple[Callable[[], Any], Callable[[], Any], Callable[[], tuple[int, int]]]
"""The engine's own, ours, and the number of drafts and the decode batch that ours agreed on."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runner", choices=("v1", "v2", "sglang"), default="v1")
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
    more = [one[_OURS] - one[_STOCK] for one in rounds]
    of_all = {"ranks": RANKS, "runner": options.runner}
    write_report({**of_all, **report, "difference": summary(more)}, options.output)
    return 0


def _of_v1(rank: int) -> Calls:
    import torch
    from specctl_vllm.compat.rank_agreement import wrap_run_ar
    from vllm.v1.worker import dp_utils

    dp_utils._get_device_and_group = lambda _: ("cpu", torch.distributed.group.WORLD)
    config = SimpleNamespace(data_parallel_size=RANKS, data_parallel_rank=rank)
    ours = wrap_run_ar(dp_utils._run_ar)
    return (
        lambda: dp_utils._run_ar(False, 8, 8, 0, config),
        _with_wish(lambda: ours(False, 8, 8, 0, config), rank),
        _agreed_on_vllm,
    )


def _with_wish(call: Callable[[], Any], rank: int) -> Callable[[], Any]:
    from specctl_vllm.compat.rank_agreement import AGREEMENT
    from specctl_vllm.report import DraftWish

    def with_wish() -> Any:
        AGREEMENT.begin(DraftWish(3, 8 + rank, False), 3)
        return call()

    return with_wish


def _agreed_on_vllm() -> tuple[int, int]:
    from specctl_vllm.compat.rank_agreement import AGREEMENT

    assert AGREEMENT.agreed is not None
    return AGREEMENT.agreed.num_speculative_tokens, AGREEMENT.agreed.decode_batch


def _of_v2(rank: int) -> Calls:
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

    wrapped = calling(wrap_get_dp_group(lambda: group))
    return calling(lambda: group), _with_wish(wrapped, rank), _agreed_on_vllm


def _of_sglang(rank: int) -> Calls:
    import torch

    if not torch.cuda.is_available():
        importlib.import_module("specctl_sglang.cpu_serve")
    from sglang.srt.managers.scheduler_components import dp_attn
    from specctl_sglang.compat import rank_agreement
    from specctl_sglang.compat.rank_agreement import AGREEMENT, Wish

    world = torch.distributed.group.WORLD
    active = SimpleNamespace(active_ranks_cpu=torch.ones(RANKS, dtype=torch.int32))
    dp_attn.get_parallel = lambda: SimpleNamespace(tp_group=active)
    stock = dp_attn.MLPSyncBatchInfo
    wraps = {
        "_get_local_tensor": rank_agreement.wrap_local_tensor,
        "_get_fallback_tensor": rank_agreement.wrap_fallback_tensor,
        "all_gather": rank_agreement.wrap_all_gather,
    }
    ours = type("Ours", (stock,), {name: wrap(getattr(stock, name)) for name, wrap in wraps.items()})
    decoding = SimpleNamespace(forward_mode=SimpleNamespace(is_decode=lambda: True))
    wish = Wish((3, 1, 4), 8 + rank)
    AGREEMENT.ask = lambda _batch: wish
    told = (RANKS, 1, 1, 8, 8, True, True, False, False, False, 2)

    def gathered(kind: Any) -> None:
        kind(*told).all_gather("cpu", world)

    def with_wish() -> None:
        AGREEMENT.begin(decoding)
        gathered(ours)

    def agreed() -> tuple[int, int]:
        assert AGREEMENT.agreed is not None
        return AGREEMENT.agreed.shape[0], AGREEMENT.agreed.decode_batch

    return (lambda: gathered(stock)), with_wish, agreed


_CALLS: dict[str, Callable[[int], Calls]] = {"v1": _of_v1, "v2": _of_v2, "sglang": _of_sglang}


def _rank(rank: int, runner: str, store: str, calls: int, rounds: int, found: Any) -> None:
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    stock, with_wish, agreed = _CALLS[runner](rank)

    def microseconds(function: Any, times: int) -> float:
        torch.distributed.barrier()
        started_s = time.perf_counter()
        for _ in range(times):
            function()
        return (time.perf_counter() - started_s) / times * 1e6

    arms = {_STOCK: stock, _OURS: with_wish}
    for function in arms.values():
        microseconds(function, WARM_UP)
    times_us = [
        {name: microseconds(function, calls) for name, function in arms.items()} for _ in range(rounds)
    ]
    assert agreed() == (3, 9)
    if rank == 0:
        found.put(times_us)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
