"""Widen a small Llama checkpoint: it costs what an 8B Llama costs and still writes the small one's text.

    python -m benchmarks.gpu.widen reference-target wide-target
    python -m benchmarks.gpu.widen reference-eagle3 wide-eagle3
    python -m benchmarks.gpu.widen reference-peagle wide-peagle

The wide hidden state is [h, h, 0, ...]: as many copies of the small one as make its mean square a power of 4
of the small one's. RMSNorm then gives the small one's output times a power of 2, which the halved (and so on)
norm weights take back, exactly in bf16; eps goes down by the power of 4. Matrices read the first copy and
write every copy. Query heads go to the group of their key/value head. Layers past the small model's repeat
its weights but for zero o_proj and down_proj: they compute, and add nothing.

Extra rows of the vocabulary are zero, so their logits are 0: good for greedy text (where the best logit is
above 0), not for sampling. The same holds for a draft head, whose extra draft tokens point at unused tokens.
Most weights and activations are zeros, which draw less power than real ones: compare arms on it, and no more.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

AUX_LAYERS = (2, 4, 5)
"""Whose inputs the reference heads read: vLLM's default for 8 layers, which a deeper model would move."""
_AUX_KEY = "eagle_aux_hidden_state_layer_ids"
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")
_ROLES = {
    "embed_tokens": ("vocab", "written"),
    "lm_head": ("output", "read"),
    "fc": ("written", "read"),
    "q_proj": ("heads", "read"),
    "k_proj": ("kv_heads", "read"),
    "v_proj": ("kv_heads", "read"),
    "o_proj": ("written", "heads"),
    "gate_proj": ("ffn", "read"),
    "up_proj": ("ffn", "read"),
    "down_proj": ("written", "ffn"),
}
"""What the rows and the columns of a matrix [out, in] stand for."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama; ``output`` counts the rows of lm_head, fewer than ``vocab`` in a head with d2t."""

    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    ffn: int = 14336
    vocab: int = 128256
    output: int = 128256

    @classmethod
    def of(cls, config: dict[str, Any]) -> Shape:
        return cls(
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            ffn=config["intermediate_size"],
            vocab=config["vocab_size"],
            output=config.get("draft_vocab_size") or config["vocab_size"],
        )


class Widening:
    """Where each row and column of a small model lies in the wide one.

    Raises:
        ValueError: the wide shape is no power of 2 times as wide, or too small to hold the small one.
    """

    def __init__(self, small: Shape, wide: Shape) -> None:
        ratio = wide.hidden // small.hidden
        if not ratio or ratio & (ratio - 1) or wide.hidden % small.hidden:
            raise ValueError(f"expected a hidden size of 2**n times {small.hidden}, got {wide.hidden}")
        if wide.head_dim != small.head_dim:
            raise ValueError(f"expected heads of {small.head_dim}, got {wide.head_dim}")
        groups = small.heads // small.kv_heads, wide.heads // wide.kv_heads
        fits = groups[0] <= groups[1] and small.kv_heads <= wide.kv_heads and small.ffn <= wide.ffn
        if not fits or small.vocab > wide.vocab or small.output > wide.output:
            raise ValueError(f"expected room for {small}, got {wide}")
        self.small, self.wide = small, wide
        self.copies = 1 + int(math.log2(ratio)) % 2
        self.mean_square = self.copies / ratio
        """Of the wide hidden state, against the small one's: a power of 4."""
        self.norm_scale = math.sqrt(self.mean_square)

    def places(self, role: str, size: int) -> tuple[list[torch.Tensor], int]:
        """int64 [size] positions of ``size`` small rows or columns, one for each copy, and the wide size."""
        small, wide = self.small, self.wide
        if role in ("read", "written"):
            blocks = torch.arange(size // small.hidden)[:, None] * wide.hidden
            first = (blocks + torch.arange(small.hidden)).flatten()
            copies = self.copies if role == "written" else 1
            return [first + copy * small.hidden for copy in range(copies)], len(blocks) * wide.hidden
        if role == "heads":
            head = torch.arange(small.heads)
            group, spread = small.heads // small.kv_heads, wide.heads // wide.kv_heads
            head = head // group * spread + head % group
            places = (head[:, None] * small.head_dim + torch.arange(small.head_dim)).flatten()
            return [places], wide.heads * wide.head_dim
        if role == "kv_heads":
            return [torch.arange(size)], wide.kv_heads * wide.head_dim
        return [torch.arange(size)], int(getattr(wide, role))

    def tensor(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """The wide twin of the tensor ``name``, same dtype and rank."""
        if name == "d2t":
            return self._draft_to_target(value)
        if name == "t2d":
            return self._target_to_draft(value)
        if value.dim() != 2:
            scale = 1.0 if name == "mask_hidden" else self.norm_scale
            row = self._placed(value.reshape(1, -1) * scale, ("one", "written"))
            return row.reshape(*value.shape[:-1], -1)
        return self._placed(value, _ROLES[name.split(".")[-2]])

    def _placed(self, value: torch.Tensor, roles: tuple[str, str]) -> torch.Tensor:
        rows, height = self.places(roles[0], value.shape[0]) if roles[0] != "one" else ([torch.arange(1)], 1)
        columns, width = self.places(roles[1], value.shape[1])
        wide = torch.zeros((height, width), dtype=value.dtype)
        for row in rows:
            for column in columns:
                wide[row[:, None], column] = value
        return wide

    def _draft_to_target(self, value: torch.Tensor) -> torch.Tensor:
        """int64 [wide.output]: target id less draft id; extra ids follow the small vocabulary."""
        wide = torch.full((self.wide.output,), self.small.vocab - self.small.output, dtype=value.dtype)
        wide[: self.small.output] = value
        return wide

    def _target_to_draft(self, value: torch.Tensor) -> torch.Tensor:
        """bool [wide.vocab]: whether a draft id points there."""
        wide = torch.zeros(self.wide.vocab, dtype=value.dtype)
        wide[: self.small.vocab] = value
        wide[self.small.vocab : self.small.vocab + self.wide.output - self.small.output] = True
        return wide


@dataclass(frozen=True)
class Part:
    """A tensor to write under ``name`` from the small tensor ``of``; all zero where ``is_silent``."""

    name: str
    of: str
    is_silent: bool = False


def target_files(names: Sequence[str], small_layers: int, layers: int) -> dict[str, list[Part]]:
    """Files of the wide target and what is in them: embedding, each layer, output."""
    files = {"embedding": [Part("model.embed_tokens.weight", "model.embed_tokens.weight")]}
    for layer in range(layers):
        source = f"model.layers.{layer % small_layers}."
        files[f"layer-{layer:02}"] = [
            Part(
                f"model.layers.{layer}.{name.removeprefix(source)}",
                name,
                layer >= small_layers and name.endswith(("o_proj.weight", "down_proj.weight")),
            )
            for name in names
            if name.startswith(source)
        ]
    output = "lm_head.weight" if "lm_head.weight" in names else "model.embed_tokens.weight"
    files["output"] = [Part("model.norm.weight", "model.norm.weight"), Part("lm_head.weight", output)]
    placed = {part.of for parts in files.values() for part in parts}
    if missed := [name for name in names if name not in placed]:
        raise ValueError(f"expected the tensors of a Llama, got {missed} too")
    return {f"model-{name}.safetensors": parts for name, parts in files.items()}


def write_file(source: Path, out: Path, widening: Widening, item: tuple[str, list[Part]]) -> dict[str, int]:
    """Write one file; bytes of each of its tensors."""
    torch.set_num_threads(1)
    file_name, parts = item
    tensors = {}
    with safe_open(source / "model.safetensors", "pt") as opened:
        for part in parts:
            value = opened.get_tensor(part.of)
            tensors[part.name] = widening.tensor(part.name, value.zero_() if part.is_silent else value)
    save_file(tensors, out / file_name, metadata={"format": "pt"})
    return {name: tensor.nbytes for name, tensor in tensors.items()}


def wide_config(config: dict[str, Any], widening: Widening) -> dict[str, Any]:
    wide = widening.wide
    return config | {
        "hidden_size": wide.hidden,
        "num_attention_heads": wide.heads,
        "num_key_value_heads": wide.kv_heads,
        "intermediate_size": wide.ffn,
        "vocab_size": wide.vocab,
        "rms_norm_eps": config["rms_norm_eps"] * widening.mean_square,
        "tie_word_embeddings": False,
    }


def widen(
    source: Path,
    out: Path,
    wide: Shape,
    *,
    layers: int = 32,
    aux_layers: Sequence[int] = AUX_LAYERS,
    jobs: int = 1,
) -> None:
    """Write the folder ``out``: config, index and shards of the wide twin of ``source``.

    ``layers`` counts for a target, ``aux_layers`` for a draft head, which keeps its depth.
    ``wide.output`` counts for a head with d2t alone; any other has the whole vocabulary.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    with safe_open(source / "model.safetensors", "pt") as opened:
        names = list(opened.keys())
    if "d2t" not in names:
        wide = Shape(**{**vars(wide), "output": wide.vocab})
    widening = Widening(Shape.of(config), wide)
    wider = wide_config(config, widening)
    if kind_of(config) == "target":
        wider["num_hidden_layers"] = layers
        files = target_files(names, config["num_hidden_layers"], layers)
    else:
        wider |= {"draft_vocab_size": wide.output, _AUX_KEY: list(aux_layers)}
        # SGLang reads only these, counts layers by their outputs and would else take those of a deep model.
        wider["eagle_config"] = {_AUX_KEY: [layer - 1 for layer in aux_layers]}
        files = {"model.safetensors": [Part(name, name) for name in names]}
    out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        run = pool.map if jobs > 1 else map
        written = list(run(partial(write_file, source, out, widening), files.items()))
    if len(files) > 1:
        index = {name: file for file, sizes in zip(files, written, strict=True) for name in sizes}
        total = {"total_size": sum(sum(sizes.values()) for sizes in written)}
        _write(out / "model.safetensors.index.json", {"metadata": total, "weight_map": index})
    _write(out / "config.json", wider)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)


def kind_of(config: dict[str, Any]) -> str:
    """What a config describes: a target, or an EAGLE-3 or P-EAGLE head."""
    if not config["architectures"][0].endswith("Eagle3"):
        return "target"
    return "peagle" if "ptd_token_id" in config else "eagle3"


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=("target", "eagle3", "peagle"), help="refuse any other source")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=Shape.hidden)
    parser.add_argument("--heads", type=int, default=Shape.heads)
    parser.add_argument("--kv-heads", type=int, default=Shape.kv_heads)
    parser.add_argument("--head-dim", type=int, default=Shape.head_dim)
    parser.add_argument("--ffn", type=int, default=Shape.ffn)
    parser.add_argument("--vocab", type=int, default=Shape.vocab)
    parser.add_argument("--draft-vocab", type=int, default=32_000, help="of a head with d2t")
    parser.add_argument("--aux-layers", type=int, nargs=3, default=AUX_LAYERS)
    parser.add_argument("--jobs", type=int, default=4, help="files written at the same time")
    given = parser.parse_args()
    found = kind_of(json.loads((given.source / "config.json").read_text(encoding="utf-8")))
    if given.kind not in (None, found):
        parser.error(f"{given.source} is of kind {found}")
    sizes = (given.hidden, given.heads, given.kv_heads, given.head_dim, given.ffn, given.vocab)
    wide = Shape(*sizes, output=given.draft_vocab)
    widen(given.source, given.out, wide, layers=given.layers, aux_layers=given.aux_layers, jobs=given.jobs)


if __name__ == "__main__":
    main()
