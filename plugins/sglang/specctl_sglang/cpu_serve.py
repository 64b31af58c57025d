"""``python -m specctl_sglang.cpu_serve``: SGLang's server on a machine without a GPU, for tests and the demo.

SGLang starts its processes by ``spawn``, and each of them imports this module first. So the stand-ins are in
place before SGLang asks for ``sgl_kernel``, in every process and in no other program.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
# Small models on few cores: threads that wait for each other cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from specctl_sglang.asked import asks
from specctl_sglang.compat import cpu_stand_ins

cpu_stand_ins.install()

OVERLAP_ENV = "SPECCTL_SGLANG_CPU_OVERLAP"
"""Set: the overlap scheduler runs, as on a GPU. With speculation on a CPU SGLang leaves it out, as it gains
nothing there; what depends on its order of events can be tested all the same."""
_DEFAULTS = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --grammar-backend none "
    "--disable-cuda-graph --skip-server-warmup --disable-hybrid-swa-memory"
)


def server_args() -> Any:
    """SGLang's, of the command line; the arguments that a CPU needs come first, so that others win."""
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    # Also for SGLang's own algorithms: without us there is no attention over drafts on a CPU.
    asks()
    load_plugins()
    arguments = [*_DEFAULTS.split(), *sys.argv[1:]]
    if os.environ.get(OVERLAP_ENV):
        speculative_hook._disable_overlap_schedule_for_cpu = lambda _server_args: None
    else:
        arguments.insert(0, "--disable-overlap-schedule")
    return prepare_server_args(arguments)


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.utils.common import kill_process_tree

    arguments = server_args()
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
