"""A file for SGLang's ``--speculative-token-map``: a list of ids, by torch.save.

    python -m benchmarks.gpu.token_map OUTPUT.pt --head HEAD
    python -m benchmarks.gpu.token_map OUTPUT.pt --first 32000

With it a P-EAGLE head, whose output layer has all tokens of the target, chooses among as many as the EAGLE-3
head that it is compared with: HEAD's own tokens, or the first of the vocabulary. Tokenizers number tokens by
their merges, which come about as often as they are early; of a widened model (benchmarks.gpu.widen) only the
first 16,384 ever occur.
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
    parser.add_argument("output", type=Path)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--head", type=Path, help="EAGLE-3")
    chosen.add_argument("--first", type=int, help="tokens")
    given = parser.parse_args()
    ids = token_map(given.head) if given.head else list(range(given.first))
    torch.save(ids, given.output)


if __name__ == "__main__":
    main()
