"""Does the draft of a launch command go with its target, its method and its engine?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specctl.checkpoints.config import CheckpointError
from specctl.checkpoints.draft import Draft, Kind, misfits, read_draft
from specctl.checkpoints.facts import ModelFacts
from specctl.doctor.finding import Finding, error, warning

__all__ = ["EXPECTED", "draft_findings", "read_for", "tensor_parallel_findings"]

# Kinds of folders that a method takes, by the engine's name of the method in lower case.
EXPECTED: dict[str, frozenset[Kind]] = {
    "eagle": frozenset({Kind.EAGLE}),
    "eagle3": frozenset({Kind.EAGLE3}),
    "specctl_peagle": frozenset({Kind.PEAGLE}),
    "specctl_hybrid": frozenset({Kind.PEAGLE}),
    "draft_model": frozenset({Kind.LANGUAGE_MODEL, Kind.UNKNOWN}),
    "standalone": frozenset({Kind.LANGUAGE_MODEL, Kind.UNKNOWN}),
    "dflash": frozenset({Kind.DFLASH}),
    "dspark": frozenset({Kind.DSPARK}),
    "mtp": frozenset({Kind.MTP, Kind.LANGUAGE_MODEL}),
    "medusa": frozenset({Kind.MEDUSA}),
    "mlp_speculator": frozenset({Kind.MLP_SPECULATOR}),
}
_WORDS = {
    Kind.EAGLE: "an EAGLE head",
    Kind.EAGLE3: "an EAGLE-3 head",
    Kind.PEAGLE: "a P-EAGLE head",
    Kind.DFLASH: "a DFlash head",
    Kind.DSPARK: "a DSpark head",
    Kind.MTP: "MTP layers",
    Kind.MEDUSA: "a Medusa head",
    Kind.MLP_SPECULATOR: "an MLP speculator",
    Kind.LANGUAGE_MODEL: "a language model",
    Kind.UNKNOWN: "a model of an unknown kind",
}
_METHOD_OF = {
    "vllm": {
        Kind.EAGLE: '"method": "eagle"',
        Kind.EAGLE3: '"method": "eagle3"',
        Kind.PEAGLE: '"method": "specctl_peagle"',
        Kind.DFLASH: '"method": "dflash"',
        Kind.DSPARK: '"method": "dspark"',
        Kind.MTP: '"method": "mtp"',
        Kind.LANGUAGE_MODEL: '"method": "draft_model"',
    },
    "sglang": {
        Kind.EAGLE: "--speculative-algorithm EAGLE",
        Kind.EAGLE3: "--speculative-algorithm EAGLE3",
        Kind.PEAGLE: "--speculative-algorithm SPECCTL_PEAGLE",
        Kind.DFLASH: "--speculative-algorithm DFLASH",
        Kind.DSPARK: "--speculative-algorithm DSPARK",
        Kind.MTP: "--speculative-algorithm NEXTN",
        Kind.LANGUAGE_MODEL: "--speculative-algorithm STANDALONE",
    },
}


def read_for(folder: Path) -> tuple[Draft | None, Finding | None]:
    """The draft, or why there is none."""
    try:
        return read_draft(folder), None
    except CheckpointError as reason:
        return None, error(
            "draft-unreadable",
            "the draft's folder cannot be read",
            str(reason),
            "name a folder with config.json and *.safetensors, or the model's name on a hub",
        )


def draft_findings(
    method: str, draft: Draft, target: ModelFacts | None, engine: str, *, is_heterogeneous: bool = False
) -> Iterator[Finding]:
    """``method``: the engine's name in lower case, without SPECCTL's change of case."""
    folder = draft.facts.folder
    expected = EXPECTED.get(method)
    # Heads of the first EAGLE have their target's architecture; without headers nothing tells them apart.
    is_ambiguous = draft.kind is Kind.LANGUAGE_MODEL and not draft.tensors
    if expected is not None and draft.kind not in expected and not is_ambiguous:
        names = " or ".join(_WORDS[kind] for kind in sorted(expected - {Kind.UNKNOWN}))
        proper = _METHOD_OF[engine].get(draft.kind)
        do = f"use {proper} for it" if proper else f"{engine} has no method for it"
        yield error(
            "draft-format",
            f"the method {method} does not take this draft",
            f"{folder} holds {_WORDS[draft.kind]}; {method} takes {names}",
            f"{do}, or name {names}",
        )
    elif engine == "sglang" and draft.is_speculators_format and draft.kind is not Kind.PEAGLE:
        yield error(
            "draft-format",
            "the draft is in the format of the library speculators, which SGLang does not read",
            f"{folder}/config.json has speculators_model_type and transformer_layer_config",
            "serve it with vLLM, or export it as an EAGLE-3 checkpoint (LlamaForCausalLMEagle3)",
        )
    if not draft.facts.weight_bytes:
        yield error(
            "draft-without-weights",
            "the draft's folder has no weights",
            f"{folder}: neither *.safetensors nor *.bin",
            "download the whole checkpoint: a pointer file of git-lfs is not one",
        )
    if target is not None:
        yield from _misfit_findings(draft, target, is_heterogeneous)


def _misfit_findings(draft: Draft, target: ModelFacts, is_heterogeneous: bool) -> Iterator[Finding]:
    codes = {
        "vocabulary": ("draft-vocabulary", "the draft's vocabulary is not the target's"),
        "hidden_size": ("draft-hidden-size", "the draft was made for a target of another size"),
        "layers": ("draft-layers", "the draft reads layers that the target does not have"),
        "tensor": ("draft-tensors", "the draft's tensors do not have the shapes that its config asks for"),
    }
    remedies = {
        "vocabulary": "take a draft with the target's tokenizer (vLLM's draft_model takes others with "
        '"use_heterogeneous_vocab": true, on Model Runner V1)',
        "hidden_size": "take the head that was trained for this very target",
        "layers": "take the head that was trained for this very target",
        "tensor": "download the checkpoint again, or take another one",
    }
    for misfit in misfits(draft, target):
        if misfit.what == "vocabulary" and is_heterogeneous:
            continue
        code, what = codes[misfit.what]
        yield error(code, what, misfit.words, remedies[misfit.what])


def tensor_parallel_findings(
    method: str, draft: Draft, tensor_parallel_size: int, draft_size: int | None
) -> Iterator[Finding]:
    """vLLM's rules: config/speculative.py ``_verify_and_get_draft_tp``, v1/spec_decode/draft_model.py."""
    if draft_size not in (None, 1, tensor_parallel_size):
        yield error(
            "draft-tensor-parallel",
            "the draft's tensor-parallel size is neither 1 nor the target's",
            f"draft_tensor_parallel_size {draft_size}, --tensor-parallel-size {tensor_parallel_size}",
            f"leave it out, or set it to {tensor_parallel_size}",
        )
        return
    if method == "draft_model" and draft_size == 1 and tensor_parallel_size > 1:
        yield error(
            "draft-tensor-parallel",
            "vLLM runs a draft model with the target's tensor-parallel size only",
            f"draft_tensor_parallel_size 1, --tensor-parallel-size {tensor_parallel_size}",
            f"leave it out, or set it to {tensor_parallel_size}",
        )
        return
    ranks = draft_size or tensor_parallel_size
    heads = draft.facts.num_heads
    if heads is not None and heads % ranks:
        do = f"a size that divides {heads}"
        alternative = "" if method == "draft_model" else ', or "draft_tensor_parallel_size": 1'
        yield error(
            "draft-tensor-parallel",
            "the draft's attention heads cannot be shared among its ranks",
            f"{draft.facts.folder}: num_attention_heads {heads}, {ranks} ranks",
            f"take {do}{alternative}",
        )
    elif draft.facts.num_kv_heads is not None and ranks > draft.facts.num_kv_heads:
        yield warning(
            "draft-tensor-parallel",
            "ranks hold copies of the draft's KV heads",
            f"{draft.facts.folder}: num_key_value_heads {draft.facts.num_kv_heads}, {ranks} ranks",
            'it costs memory; "draft_tensor_parallel_size": 1 keeps one copy where the method takes it',
        )
