"""Entry points of this tree without an installation, for a machine with no package index.

    python -m benchmarks.gpu.entry_points FOLDER [--captures]

Writes FOLDER/NAME-VERSION.dist-info as pyproject.toml has it. With FOLDER, the root, kernels, plugins/vllm
and plugins/sglang on PYTHONPATH, engines find the plugins. ``--captures``: SGLang's processes also tell each
capture of a CUDA graph (benchmarks.gpu.graph_captures).
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from pathlib import Path

__all__ = ["write"]

_ROOT = Path(__file__).parents[2]
_CAPTURES = {"graph_captures": "benchmarks.gpu.graph_captures:install"}


def write(folder: Path, tells_captures: bool = False) -> Path:
    """The dist-info folder."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups: dict[str, Mapping[str, str]] = dict(project["entry-points"])
    if tells_captures:
        groups["sglang.srt.plugins"] = {**groups["sglang.srt.plugins"], **_CAPTURES}
    name, version = project["name"], project["version"]
    written = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    written.mkdir(parents=True, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (written / "METADATA").write_text(metadata, encoding="utf-8")
    sections = [
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in points.items())])
        for group, points in groups.items()
    ]
    (written / "entry_points.txt").write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--captures", action="store_true")
    given = parser.parse_args()
    print(write(given.folder, given.captures))


if __name__ == "__main__":
    main()
