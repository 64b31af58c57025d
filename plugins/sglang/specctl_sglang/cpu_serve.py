"""``python -m specctl_sglang.cpu_serve``: SGLang's server on a machine without a GPU, for tests and the demo.

SGLang starts its processes by ``spawn``, and each of them imports this module first. So the stand-ins are in
place before SGLang asks for ``sgl_kernel``, in every process and in no other program.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

from specctl_sglang.compat import cpu_stand_ins

cpu_stand_ins.install()

_DEFAULTS = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --grammar-backend none "
    "--disable-overlap-schedule --disable-cuda-graph --skip-server-warmup"
)


def main() -> None:
    """SGLang's own arguments; the ones that a CPU needs come first, so that others win."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(prepare_server_args([*_DEFAULTS.split(), *sys.argv[1:]]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
