"""Every benchmark of a verify kernel, one after another, each with its file in a folder.

python -m benchmarks.gpu.kernels --folder FOLDER
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

BENCHMARKS = {
    "verify-greedy": "benchmarks.gpu.verify",
    "verify-sampled": "benchmarks.gpu.verify_sampled",
    "verify-block": "benchmarks.gpu.verify_block",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    if not torch.cuda.is_available():
        print("bench-kernels needs a GPU")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, module in BENCHMARKS.items():
        print(f"{name}:", flush=True)
        command = [sys.executable, "-m", module, "--output", str(folder / f"gpu-{name}.json")]
        failed |= subprocess.run(command, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
