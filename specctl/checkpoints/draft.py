"""What kind of draft a folder holds, and whether it fits its target.

Kinds are recognised by what engines themselves look at: ``architectures`` and ``model_type`` of config.json,
the key ``speculators_model_type`` of the library speculators, and names of tensors.
Sources: vLLM ``config/speculative.py`` and ``transformers_utils/configs/speculators``; SGLang
``srt/models/llama_eagle3.py`` and ``srt/speculative``; the format of https://github.com/vllm-project/speculators.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from specctl.checkpoints.config import CheckpointError, raw_config, read_config
from specctl.checkpoints.facts import ModelFacts, facts_of, text_config
from specctl.checkpoints.tensors import Tensor, read_tensors

__all__ = ["Draft", "Kind", "Misfit", "misfits", "read_draft"]


class Kind(StrEnum):
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    PEAGLE = "peagle"
    DFLASH = "dflash"
    DSPARK = "dspark"
    MTP = "mtp"
    MEDUSA = "medusa"
    MLP_SPECULATOR = "mlp_speculator"
    LANGUAGE_MODEL = "language_model"
    UNKNOWN = "unknown"


HEADS = frozenset({Kind.EAGLE, Kind.EAGLE3, Kind.PEAGLE, Kind.DFLASH, Kind.DSPARK})
"""They read hidden states of their target, so that sizes must fit."""
_MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")
_BY_NAME = (
    ("eagle3", Kind.EAGLE3),
    ("peagle", Kind.PEAGLE),
    ("dflash", Kind.DFLASH),
    ("dspark", Kind.DSPARK),
    ("eagle", Kind.EAGLE),
    ("medusa", Kind.MEDUSA),
    ("mlpspeculator", Kind.MLP_SPECULATOR),
    ("mlp_speculator", Kind.MLP_SPECULATOR),
    ("nextn", Kind.MTP),
    ("mtp", Kind.MTP),
)


@dataclass(frozen=True, slots=True)
class Draft:
    facts: ModelFacts
    kind: Kind
    is_speculators_format: bool
    target_hidden_size: int | None
    """Of the target that a head was made for; None: not a head."""
    draft_vocab_size: int | None
    trained_tokens: int | None
    """Most tokens of one parallel pass that it was trained for; None: not said."""
    aux_layer_ids: tuple[int, ...]
    aux_states: int
    tensors: dict[str, Tensor]

    def tensor(self, part: str) -> Tensor | None:
        """The first whose name holds ``part``."""
        return next((tensor for name, tensor in self.tensors.items() if part in name), None)


@dataclass(frozen=True, slots=True)
class Misfit:
    """``what``: vocabulary, hidden_size, layers or tensor."""

    what: str
    words: str


def read_draft(folder: Path) -> Draft:
    """Raises CheckpointError for a folder whose config or weights cannot be read."""
    raw = raw_config(folder)
    kind_given = raw.get("speculators_model_type")
    try:
        tensors = read_tensors(folder)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    kind = _kind(raw, kind_given, tensors)
    # Of a head transformers would fill in what a whole model of its model_type has.
    facts = facts_of(folder, read_config(folder) if kind is Kind.LANGUAGE_MODEL else raw)
    layer = text_config(raw)
    ids = _aux_ids(raw, layer)
    target_hidden = raw.get("target_hidden_size") or layer.get("target_hidden_size") or facts.hidden_size
    return Draft(
        facts=facts,
        kind=kind,
        is_speculators_format=kind_given is not None,
        target_hidden_size=target_hidden if kind in HEADS else None,
        draft_vocab_size=raw.get("draft_vocab_size") or facts.vocab_size,
        trained_tokens=_trained_tokens(raw, kind),
        aux_layer_ids=ids,
        aux_states=layer.get("num_aux_hidden_states") or len(ids) or 3,
        tensors=tensors,
    )


def _kind(raw: dict[str, Any], given: object, tensors: dict[str, Tensor]) -> Kind:
    if given is not None:
        return next((kind for name, kind in _BY_NAME if name == given), Kind.UNKNOWN)
    names = " ".join([*map(str, raw.get("architectures") or ()), str(raw.get("model_type"))]).lower()
    found = next((kind for part, kind in _BY_NAME if part in names), None)
    has_mask = any("mask_hidden" in name for name in tensors) or any(
        raw.get(key) is not None for key in _MASK_KEYS
    )
    if found in (Kind.EAGLE3, None) and has_mask and found is not None:
        return Kind.PEAGLE
    if found is not None:
        return found
    return _by_tensors(names, tensors, has_mask)


def _by_tensors(names: str, tensors: dict[str, Tensor], has_mask: bool) -> Kind:
    """A head of the first EAGLE is published under the architecture of its target: it has a layer ``fc`` and
    no embedding of its own that a language model could do without."""
    has_fc = any(name == "fc.weight" or name.endswith(".fc.weight") for name in tensors)
    if has_fc:
        if any("d2t" in name or "midlayer" in name for name in tensors):
            return Kind.PEAGLE if has_mask else Kind.EAGLE3
        return Kind.EAGLE
    if any("medusa" in name for name in tensors):
        return Kind.MEDUSA
    return Kind.LANGUAGE_MODEL if "causallm" in names or "conditionalgeneration" in names else Kind.UNKNOWN


def _aux_ids(raw: dict[str, Any], layer: dict[str, Any]) -> tuple[int, ...]:
    eagle = layer.get("eagle_config") or {}
    found = (
        raw.get("eagle_aux_hidden_state_layer_ids")
        or raw.get("aux_hidden_state_layer_ids")
        or (eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, dict) else None)
        or ()
    )
    return tuple(one for one in found if isinstance(one, int)) if isinstance(found, list) else ()


def _trained_tokens(raw: dict[str, Any], kind: Kind) -> int | None:
    if kind is Kind.DFLASH and isinstance(raw.get("block_size"), int):
        return int(raw["block_size"]) - 1
    if kind is not Kind.PEAGLE:
        return None
    if isinstance(raw.get("num_depths"), int):
        return int(raw["num_depths"])
    methods = (raw.get("speculators_config") or {}).get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    tokens = first.get("speculative_tokens")
    return tokens if isinstance(tokens, int) else None


def misfits(draft: Draft, target: ModelFacts) -> list[Misfit]:
    """What of a draft does not go with the target. Empty: nothing that can be seen."""
    found = []
    own, theirs = draft.facts.vocab_size, target.vocab_size
    if own is not None and theirs is not None and own != theirs:
        words = f"{draft.facts.folder}: vocab_size {own}, the target's is {theirs}"
        found.append(Misfit("vocabulary", words))
    if draft.kind in HEADS:
        found += _head_misfits(draft, target)
    return found


def _head_misfits(draft: Draft, target: ModelFacts) -> list[Misfit]:
    found = []
    folder, size, theirs = draft.facts.folder, draft.target_hidden_size, target.hidden_size
    if size is not None and theirs is not None and size != theirs:
        words = f"{folder}: made for a target of hidden size {size}, this target's is {theirs}"
        found.append(Misfit("hidden_size", words))
    most = max(draft.aux_layer_ids, default=0)
    if target.num_layers is not None and most > target.num_layers:
        words = f"{folder}: reads layer {most} of its target, which has {target.num_layers}"
        found.append(Misfit("layers", words))
    fc = draft.tensor("fc.weight")
    if draft.kind in (Kind.EAGLE3, Kind.PEAGLE) and fc is not None and size is not None:
        expected = draft.aux_states * size
        if len(fc.shape) != 2 or fc.shape[1] != expected:
            words = f"{fc.file}: fc.weight has shape {fc.shape}, expected {expected} columns"
            found.append(Misfit("tensor", words))
    smaller, whole = draft.draft_vocab_size, draft.facts.vocab_size
    is_mapped = draft.tensor("d2t") is not None or not draft.tensors
    if smaller is not None and whole is not None and smaller < whole and not is_mapped:
        words = f"{folder}: draft_vocab_size {smaller} of {whole}, and no tensor d2t maps its ids"
        found.append(Misfit("vocabulary", words))
    return found
