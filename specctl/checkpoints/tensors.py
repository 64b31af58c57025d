"""Names, shapes and bytes of the weights in a folder, from the headers of safetensors files.

A file begins with the header's length (8 bytes, little-endian) and the header as JSON.
Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from specctl.json_bounds import read_json

__all__ = ["HEADER_MAX_BYTES", "Tensor", "read_tensors", "tensor_names", "weight_bytes"]

HEADER_MAX_BYTES = 100_000_000
"""The format's own bound."""
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf")


@dataclass(frozen=True, slots=True)
class Tensor:
    shape: tuple[int, ...]
    dtype: str
    file: Path

    @property
    def numbers(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """By name; empty without safetensors files. Raises ValueError that names a file which is none."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= _header(file)
    return found


def tensor_names(folder: Path) -> list[str]:
    """By the index of a checkpoint in several files, else by the headers; empty for what cannot be read."""
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            return list(read_json(index.read_text(encoding="utf-8"))["weight_map"])
        return list(read_tensors(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return []


def weight_bytes(folder: Path) -> int | None:
    """On disk, which is also about what they take on a device. None: there are no weights."""
    files = list(folder.glob("*.safetensors"))
    files = files or [file for pattern in _OTHER_WEIGHTS for file in folder.glob(pattern)]
    return sum(file.stat().st_size for file in files) or None


def _header(file: Path) -> dict[str, Tensor]:
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > HEADER_MAX_BYTES:
                raise ValueError(f"a header of {length} bytes")
            entries = read_json(opened.read(length))
        return {
            name: Tensor(tuple(entry["shape"]), entry["dtype"], file)
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(f"{file}: expected a safetensors file ({error})") from None
