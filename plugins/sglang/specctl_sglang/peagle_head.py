"""A P-EAGLE checkpoint in the form that SGLang can load: a folder of its own with a config that names our
architecture, and links to the checkpoint's files. The checkpoint itself stays as it is."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specctl.engine.peagle_checkpoint import check_peagle_checkpoint, is_peagle_head, tensor_names

__all__ = [
    "ARCHITECTURE",
    "EAGLE3_BY_FLAG",
    "TOKEN_MAP_KEY",
    "HeadTarget",
    "prepared_head",
    "refuse_peagle_head",
]

ARCHITECTURE = "SpecctlPEagle"
EAGLE3_BY_FLAG = "--speculative-algorithm EAGLE3"
TOKEN_MAP_KEY = "specctl_token_map"
"""Of the config: a .npy file of int64[n], the only ids that are drafted."""
_MAP_FLAG = "--speculative-token-map"
_AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"


class HeadTarget:
    """What a head must fit."""

    def __init__(self, hidden_size: int, vocab_size: int, num_hidden_layers: int) -> None:
        self.hidden_size, self.vocab_size = hidden_size, vocab_size
        self.num_hidden_layers = num_hidden_layers


def refuse_peagle_head(folder: Path, algorithm: str, by: str) -> None:
    """For an algorithm that drafts token by token. Raises ValueError for a P-EAGLE head.

    by: how the engine is asked for such a head.
    """
    if is_peagle_head(folder):
        raise ValueError(
            f"{folder}: expected an EAGLE-3 head for {algorithm}, found a P-EAGLE head, with a tensor "
            f"mask_hidden: {by} is the one to use for it"
        )


def prepared_head(
    head: Path, target: HeadTarget, num_speculative_tokens: int, token_map: Sequence[int] | None = None
) -> Path:
    """A folder that is there until this process ends. Raises ValueError that names file, key, what was
    expected and what was found.

    token_map: the target's ids that may be drafted (FR-Spec, arXiv 2502.14856, section 4): the head's output
    layer has a row for each of them and no others.
    """
    found = check_peagle_checkpoint(
        head,
        target_hidden_size=target.hidden_size,
        target_vocab_size=target.vocab_size,
        num_speculative_tokens=num_speculative_tokens,
        target_num_hidden_layers=target.num_hidden_layers,
        eagle3_by=EAGLE3_BY_FLAG,
    )
    file = head / "config.json"
    source = json.loads(file.read_text(encoding="utf-8"))
    config = _layer_config(source, file) | {"ptd_token_id": found.mask_token_id}
    names = tensor_names(head)
    has_output = names is None or any("lm_head." in name for name in names)
    # SGLang shares the target's output layer where the config names no size of its own.
    config["draft_vocab_size"] = found.draft_vocab_size if has_output else None
    _put_aux_layers(config, source, file, target.num_hidden_layers)
    _check_embedding(config, names, file)
    folder = _linked(head)
    if token_map is not None:
        ids = _checked_map(token_map, config["draft_vocab_size"], target.vocab_size, file)
        np.save(folder / "token_map.npy", ids)
        config |= {"draft_vocab_size": len(ids), TOKEN_MAP_KEY: str(folder / "token_map.npy")}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def _checked_map(
    token_map: Sequence[int], draft_vocab_size: int | None, vocab_size: int, file: Path
) -> npt.NDArray[np.int64]:
    """In ascending order, in which equal logits are chosen from as without a map."""
    if draft_vocab_size != vocab_size:
        found = "none" if draft_vocab_size is None else f"one of {draft_vocab_size}"
        raise ValueError(
            f"{file}: {_MAP_FLAG}: expected a head with an output layer of its own for all {vocab_size} "
            f"tokens, found {found}"
        )
    ids = np.unique(np.asarray(token_map, np.int64))
    if not len(ids) or ids[0] < 0 or ids[-1] >= vocab_size:
        found = f"{ids[0]} to {ids[-1]}" if len(ids) else "none"
        raise ValueError(f"{_MAP_FLAG}: expected ids from 0 to {vocab_size - 1}, found {found}")
    return ids


def _layer_config(source: dict[str, Any], file: Path) -> dict[str, Any]:
    config = dict(source.get("transformer_layer_config") or source)
    if config.get("model_type", "llama") != "llama":
        raise ValueError(
            f"{file}: model_type: expected a head of llama layers, found {json.dumps(config['model_type'])}"
        )
    for key in ("target_hidden_size", "norm_before_residual", "norm_before_fc"):
        if source.get(key) is not None:
            config[key] = source[key]
    return config | {"model_type": "llama", "architectures": [ARCHITECTURE], "tie_word_embeddings": False}


def _put_aux_layers(config: dict[str, Any], source: dict[str, Any], file: Path, layers: int) -> None:
    """The layer before which a state is taken; SGLang wants the one after which it is."""
    ids = source.get(_AUX_LAYERS)
    config.pop(_AUX_LAYERS, None)
    if not ids:
        return
    if not all(0 < number < layers for number in ids):
        expected = f"numbers of layers from 1 to {layers - 1}, before which SGLang can take a state"
        raise ValueError(f"{file}: {_AUX_LAYERS}: expected {expected}, found {ids}")
    eagle = {**(config.get("eagle_config") or {}), _AUX_LAYERS: [number - 1 for number in ids]}
    config |= {"num_aux_hidden_states": len(ids), "eagle_config": eagle}


def _check_embedding(config: dict[str, Any], names: frozenset[str] | None, file: Path) -> None:
    own = config.get("target_hidden_size", config["hidden_size"]) != config["hidden_size"]
    if own and names is not None and not any("embed_tokens" in name for name in names):
        raise ValueError(
            f"{file}: hidden_size {config['hidden_size']} is not target_hidden_size: expected a tensor "
            "embed_tokens.weight, found none, and the target's does not fit"
        )


def _linked(head: Path) -> Path:
    """A new folder with all but the config."""
    folder = Path(tempfile.mkdtemp(prefix="specctl-head-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for file in head.iterdir():
        if file.is_file() and file.name != "config.json":
            (folder / file.name).symlink_to(file.resolve())
    return folder
