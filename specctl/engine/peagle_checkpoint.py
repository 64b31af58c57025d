"""Does a folder hold a P-EAGLE draft head (arXiv 2602.01469) that fits the target? Asked before the start.

Two formats are published, and both are read as vLLM reads them: an EAGLE-3 config with ``ptd_token_id`` or
``pard_token``, and that of the library speculators. Only config.json and the headers of safetensors files are
looked at.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from specctl.json_bounds import read_json

__all__ = [
    "EAGLE3_BY_METHOD",
    "PEagleCheckpoint",
    "check_peagle_checkpoint",
    "is_peagle_head",
    "tensor_names",
]

EAGLE3_BY_METHOD = '"method": "eagle3"'
"""How an EAGLE-3 head is asked for on vLLM."""

_MASK_TOKEN_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")
"""vLLM's order: the first that is there counts."""
_AUX_STATES_DEFAULT = 3


@dataclass(frozen=True)
class PEagleCheckpoint:
    """What a draft head says of itself, found to fit its target."""

    format: Literal["eagle3", "speculators"]
    mask_token_id: int
    """Stands in the places of tokens not yet known."""
    trained_tokens: int | None
    """Most tokens the head was trained to draft in one pass; None: its config does not say."""
    draft_vocab_size: int
    num_layers: int
    file: Path
    """Holds the mask state; where it is pytorch_model.bin, no tensor was checked."""


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    file: Path


Tensors = dict[str, _Tensor]


def check_peagle_checkpoint(
    folder: Path,
    *,
    target_hidden_size: int,
    target_vocab_size: int,
    num_speculative_tokens: int,
    target_num_hidden_layers: int | None = None,
    eagle3_by: str = EAGLE3_BY_METHOD,
) -> PEagleCheckpoint:
    """The head in ``folder``; ``num_speculative_tokens`` is the most that one pass is to draft.

    eagle3_by: how the engine is asked for an EAGLE-3 head, for the message where the folder holds one.

    Raises ValueError that names the file and the key or tensor, what was expected, and what was found.
    """
    if num_speculative_tokens < 1:
        raise ValueError(f"num_speculative_tokens: expected at least 1, found {num_speculative_tokens}")
    head = _Head(_config_file(folder))
    tensors = _tensors(folder)
    _check_is_peagle(head, tensors, eagle3_by)
    _check_target_sizes(head, target_hidden_size, target_vocab_size)
    _check_aux_layers(head, target_num_hidden_layers)
    trained = head.trained_tokens
    if trained is not None and num_speculative_tokens > trained:
        raise ValueError(
            f"num_speculative_tokens: expected at most {trained}, the number that {head.file} "
            f"says the head was trained for, found {num_speculative_tokens}"
        )
    weights = folder / "pytorch_model.bin" if tensors is None else _check_tensors(head, tensors)
    return PEagleCheckpoint(
        format=head.format,
        mask_token_id=head.mask_token_id,
        trained_tokens=trained,
        draft_vocab_size=head.draft_vocab_size,
        num_layers=head.number(head.layer, "num_hidden_layers"),
        file=weights,
    )


def is_peagle_head(folder: Path) -> bool:
    """Whether a folder holds a head for a parallel pass: with a mask state, or one that says so. False for
    what cannot be read."""
    try:
        head = _Head(_config_file(folder))
        return head.kind == "peagle" or _named(_tensors(folder) or {}, "mask_hidden") is not None
    except ValueError:
        return False


def tensor_names(folder: Path) -> frozenset[str] | None:
    """Of all *.safetensors files; None where there is only a pytorch_model.bin. ValueError: neither."""
    tensors = _tensors(folder)
    return None if tensors is None else frozenset(tensors)


class _Head:
    """config.json by the rules of vLLM: transformers_utils/configs/speculators, models/llama_eagle3."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.config = _read_config(file)
        self.kind = self.config.get("speculators_model_type")
        self.format: Literal["eagle3", "speculators"] = "eagle3" if self.kind is None else "speculators"
        self.layer = self.config
        """What describes the decoder's layers: nested in the format of speculators."""
        if self.format == "speculators":
            self.layer = self._section(self.config, "transformer_layer_config")
        self.eagle = self._section(self.layer, "eagle_config", is_needed=False)

    def _section(self, config: dict[str, Any], key: str, is_needed: bool = True) -> dict[str, Any]:
        found = config.get(key)
        if found is None and not is_needed:
            return {}
        if not isinstance(found, dict):
            raise self.error(key, "an object", found)
        return found

    def error(self, key: str, expected: str, found: object) -> ValueError:
        return ValueError(f"{self.file}: {key}: expected {expected}, found {_shown(found)}")

    def number(self, config: dict[str, Any], key: str, least: int = 1) -> int:
        found = config.get(key)
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise self.error(key, f"an integer of at least {least}", found)
        return found

    @property
    def mask_token_keys(self) -> tuple[str, ...]:
        return _MASK_TOKEN_KEYS if self.format == "eagle3" else _MASK_TOKEN_KEYS[:1]

    @property
    def has_mask_token(self) -> bool:
        return any(self.config.get(key) is not None for key in self.mask_token_keys)

    @cached_property
    def mask_token_id(self) -> int:
        key = next((key for key in self.mask_token_keys if self.config.get(key) is not None), None)
        if key is None:
            raise self.error(" or ".join(self.mask_token_keys), "the id of the mask token", None)
        token = self.number(self.config, key, least=0)
        if token >= self.vocab_size:
            raise self.error(key, f"a token id below the vocabulary's size {self.vocab_size}", token)
        return token

    @cached_property
    def trained_tokens(self) -> int | None:
        """speculators writes its number of training depths, num_depths, once more as speculative_tokens. The
        heads of amazon name theirs in the model card only."""
        if self.format == "eagle3":
            return None
        if self.config.get("num_depths") is not None:
            return self.number(self.config, "num_depths")
        methods = self._section(self.config, "speculators_config", is_needed=False).get("proposal_methods")
        if not isinstance(methods, list) or not methods or not isinstance(methods[0], dict):
            return None
        if methods[0].get("speculative_tokens") is None:
            return None
        return self.number(methods[0], "speculative_tokens")

    @cached_property
    def hidden_size(self) -> int:
        return self.number(self.layer, "hidden_size")

    @property
    def target_hidden_size(self) -> int:
        """Of the target that the head was made for."""
        for config in (self.config, self.layer):
            if config.get("target_hidden_size") is not None:
                return self.number(config, "target_hidden_size")
        return self.hidden_size

    @cached_property
    def vocab_size(self) -> int:
        return self.number(self.layer, "vocab_size")

    @cached_property
    def draft_vocab_size(self) -> int:
        if self.config.get("draft_vocab_size") is None:
            return self.vocab_size
        size = self.number(self.config, "draft_vocab_size")
        if size > self.vocab_size:
            raise self.error("draft_vocab_size", f"at most vocab_size {self.vocab_size}", size)
        return size

    @property
    def aux_states(self) -> int:
        """Hidden states of the target that the head reads for a token."""
        if self.layer.get("num_aux_hidden_states") is not None:
            return self.number(self.layer, "num_aux_hidden_states")
        return len(self.eagle.get("eagle_aux_hidden_state_layer_ids") or ()) or _AUX_STATES_DEFAULT

    @property
    def aux_layer_ids(self) -> list[Any]:
        """Layers of the target that those states are taken from; empty: the target's model decides."""
        return self.config.get("eagle_aux_hidden_state_layer_ids") or self.eagle.get("layer_ids") or []


def _check_is_peagle(head: _Head, tensors: Tensors | None, eagle3_by: str) -> None:
    """Tells what else the folder holds where that can be seen."""
    if head.kind is not None and head.kind != "peagle":
        hint = f"; a plain EAGLE-3 head goes with {eagle3_by}" if head.kind == "eagle3" else ""
        raise ValueError(f"{head.error('speculators_model_type', 'peagle', head.kind)}{hint}")
    has_mask_state = tensors is not None and _named(tensors, "mask_hidden") is not None
    if head.format == "eagle3" and not head.has_mask_token and not has_mask_state:
        architectures = head.config.get("architectures")
        is_eagle3 = "eagle3" in str(architectures).lower() or (tensors is not None and "fc.weight" in tensors)
        what = f"a plain EAGLE-3 head: {eagle3_by} is the one to use for it" if is_eagle3 else "neither"
        raise ValueError(
            f"{head.file}: expected a P-EAGLE head, with {' or '.join(head.mask_token_keys)} here and "
            f"a tensor mask_hidden in its weights, found {what} (architectures: {_shown(architectures)})"
        )


def _check_target_sizes(head: _Head, target_hidden_size: int, target_vocab_size: int) -> None:
    if head.target_hidden_size != target_hidden_size:
        key = "hidden_size" if head.target_hidden_size == head.hidden_size else "target_hidden_size"
        raise head.error(key, f"the target's hidden size {target_hidden_size}", head.target_hidden_size)
    if head.vocab_size != target_vocab_size:
        raise head.error("vocab_size", f"the target's vocabulary size {target_vocab_size}", head.vocab_size)
    if head.eagle.get("use_aux_hidden_state") is False:
        raise head.error("eagle_config.use_aux_hidden_state", "true", False)
    _ = head.mask_token_id, head.draft_vocab_size  # raise where they do not fit


def _check_aux_layers(head: _Head, target_num_hidden_layers: int | None) -> None:
    ids = head.aux_layer_ids
    if not ids:
        return
    key = "eagle_aux_hidden_state_layer_ids"
    if not isinstance(ids, list) or len(set(map(str, ids))) != head.aux_states:
        raise head.error(key, f"{head.aux_states} different layers, as many as the head reads states", ids)
    most = target_num_hidden_layers
    for layer in ids:
        if not isinstance(layer, int) or layer < 0 or (most is not None and layer > most):
            upto = "" if most is None else f" to {most}, the number of the target's layers"
            raise head.error(key, f"numbers of layers from 0{upto}", ids)


def _check_tensors(head: _Head, tensors: Tensors) -> Path:
    """The file that holds the mask state."""
    states = head.aux_states * head.target_hidden_size
    places = f"{head.aux_states} states x hidden size {head.target_hidden_size}"
    mask = _named(tensors, "mask_hidden")
    if mask is None:
        raise ValueError(
            f"{head.file.parent}: tensor mask_hidden: expected {states} values ({places}), "
            "found no such tensor in its weights"
        )
    if prod(mask.shape) != states:
        raise _misshapen("mask_hidden", mask, f"{states} values ({places})")
    _check_shape(tensors, "fc.weight", (head.hidden_size, states), mask.file, is_needed=True)
    _check_shape(tensors, "lm_head.weight", (head.draft_vocab_size, head.hidden_size), mask.file)
    _check_shape(tensors, "embed_tokens.weight", (head.vocab_size, head.hidden_size), mask.file)
    if head.draft_vocab_size != head.vocab_size:
        d2t = _named(tensors, "d2t")
        if d2t is None:
            both = f"draft_vocab_size {head.draft_vocab_size} is not vocab_size {head.vocab_size}"
            raise ValueError(f"{mask.file}: tensor d2t: expected, because {both} in {head.file}, found none")
        if d2t.shape != (head.draft_vocab_size,):
            raise _misshapen("d2t", d2t, f"shape ({head.draft_vocab_size},)")
    return mask.file


def _check_shape(
    tensors: Tensors, name: str, shape: tuple[int, ...], file: Path, is_needed: bool = False
) -> None:
    tensor = tensors.get(name)
    if tensor is None:
        if is_needed:
            raise ValueError(f"{file}: tensor {name}: expected shape {shape}, found no such tensor")
    elif tensor.shape != shape:
        raise _misshapen(name, tensor, f"shape {shape}")


def _misshapen(name: str, tensor: _Tensor, expected: str) -> ValueError:
    return ValueError(f"{tensor.file}: tensor {name}: expected {expected}, found shape {tensor.shape}")


def _named(tensors: Tensors, part: str) -> _Tensor | None:
    """vLLM takes these by a part of their names, whatever stands before it."""
    return next((tensor for name, tensor in tensors.items() if part in name), None)


def _config_file(folder: Path) -> Path:
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected the folder of a P-EAGLE draft head, found no folder")
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{folder}: expected a file config.json, found none")
    return file


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = read_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: expected JSON, found what cannot be read ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file}: expected a JSON object, found {_shown(config)}")
    return config


def _tensors(folder: Path) -> Tensors | None:
    """All tensors by name, without their values; None where there is only a pytorch_model.bin."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        if (pickled := folder / "pytorch_model.bin").is_file():
            # SGLang 0.5.21 loads this one format without weights_only.
            if tarfile.is_tarfile(pickled):
                raise ValueError(f"{pickled}: loading a tar archive may run code; expected safetensors")
            return None
        raise ValueError(f"{folder}: expected weights in *.safetensors or pytorch_model.bin, found none")
    return {name: tensor for file in files for name, tensor in _header(file).items()}


def _header(file: Path) -> Tensors:
    try:
        with safe_open(file, framework="numpy") as opened:
            names = opened.keys()
            return {name: _Tensor(tuple(opened.get_slice(name).get_shape()), file) for name in names}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file}: expected a safetensors file, found what is none ({error})") from None


def _shown(found: object) -> str:
    return "nothing" if found is None else json.dumps(found, default=str)
