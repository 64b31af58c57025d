"""The tokens that an EAGLE-3 head can draft, as a file for SGLang's ``--speculative-token-map``.

    python -m benchmarks.gpu.token_map HEAD OUTPUT.pt

With it a P-EAGLE head, whose output layer has all tokens of the target, chooses among as many as the EAGLE-3
head that it is compared with. OUTPUT.pt: a list of ids, by torch.save.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors import safe_open

__all__ = ["token_map"]


def token_map(head: Path) -> list[int]:
    """Raises ValueError for a head without a vocabulary of its own."""
    for path in sorted(head.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if "d2t" in file.keys():  # noqa: SIM118 (not a dict)
                shifts = file.get_tensor("d2t")
                ids: list[int] = (shifts + torch.arange(len(shifts))).tolist()
                return ids
    raise ValueError(f"{head}: expected a tensor d2t, found none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("head", type=Path)
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    torch.save(token_map(given.head), given.output)


if __name__ == "__main__":
    main()
