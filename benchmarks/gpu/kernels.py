"""Every verify kernel at every number of rows and vocabulary size, on a GPU; the file goes to a folder.

python -m benchmarks.gpu.kernels --folder FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.gpu import verify_by_kernel

ROWS = ("8", "64", "512", "1024", "2048")
VOCABULARIES = ("32000", "128256", "151936", "262144")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    if not torch.cuda.is_available():
        print("bench-kernels needs a GPU")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    shapes = ["--rows", *ROWS, "--vocabularies", *VOCABULARIES]
    return verify_by_kernel.main([*shapes, "--output", str(folder / "gpu-verify.json")])


if __name__ == "__main__":
    raise SystemExit(main())
