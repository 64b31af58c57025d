"""Set up SGLang with the plugin in ``.venv-sglang``, for the tests and the demo that start its server.

The oldest supported release is in ``.venv-sglang-first``, which takes all but a few packages from there.

An environment of its own: SGLang and vLLM pin different releases of transformers. Stages and stamps are those
of ``setup.py``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

# Found as a script as well as from the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools import setup

SGLANG = "0.5.23"
VENV = setup.ROOT / ".venv-sglang"
NEEDS = Path(__file__).with_name("sglang-cpu.txt")
FIRST = ("sglang==0.5.21", "transformers==5.12.1", "tokenizers==0.22.2")
FIRST_VENV = setup.ROOT / ".venv-sglang-first"


def main() -> int:
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        # SGLang publishes no other wheels; its tests are skipped then, and say so.
        print(f"setup: SGLang expects Python 3.11 or 3.12, got {sys.version.split()[0]}; it is left out")
        return 0
    started_s = time.monotonic()
    setup.use(VENV)
    setup.stage("virtual environment for SGLang", setup.make_venv, sys.version)
    setup.stage(f"torch {setup.TORCH}", setup.install_torch, setup.TORCH, str(setup.HAS_GPU))
    needs = NEEDS.read_text(encoding="utf-8")
    setup.stage(f"sglang {SGLANG}", install_sglang, SGLANG, str(setup.HAS_GPU), needs)
    project = (setup.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    setup.stage("specctl for SGLang", install_plugin, project, *setup.packages())
    if not setup.HAS_GPU:
        setup.use(FIRST_VENV)
        setup.stage("oldest supported SGLang", install_first, sys.version, needs, *FIRST)
    print(f"setup: SGLang is ready after {time.monotonic() - started_s:.0f} s")
    return 0


def install_sglang() -> None:
    if setup.HAS_GPU:
        setup.pip("install", f"sglang=={SGLANG}")
        return
    # What it declares is for a GPU: 2 GB of kernels that a CPU cannot load.
    setup.pip("install", "--no-deps", f"sglang=={SGLANG}", "-r", str(NEEDS))


def install_first() -> None:
    """Beside ``.venv-sglang``, whose packages come behind its own."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(FIRST_VENV)], check=True)
    folder = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    line = f"import site; site.addsitedir({str(VENV / folder)!r})\n"
    (FIRST_VENV / folder / "behind.pth").write_text(line, encoding="utf-8")
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--python", str(FIRST_VENV / "bin" / "python")]
    subprocess.run(
        [*pip, "-qq", "install", "--no-compile", "--no-deps", "--ignore-installed", *FIRST], check=True
    )


def install_plugin() -> None:
    needs = ["httptools", "numba", "xxhash"] if setup.HAS_GPU else []
    setup.install_editable(*setup.keep_torch(), "--no-deps", "-e", str(setup.ROOT))
    if needs:
        setup.pip("install", *setup.keep_torch(), *needs)


if __name__ == "__main__":
    raise SystemExit(main())
