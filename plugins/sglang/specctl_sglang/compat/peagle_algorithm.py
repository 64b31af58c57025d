"""What SGLang asks of an algorithm that it does not know, for SPECCTL_PEAGLE, and which head fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from specctl_sglang.asked import asks
from specctl_sglang.compat.refused_modes import refuse_modes
from specctl_sglang.peagle_head import ARCHITECTURE, HeadTarget, prepared_head, refuse_peagle_head
from specctl_sglang.proposers.peagle_rows import rows_of_pass
from specctl_sglang.terms import PEAGLE, drafts_of, width_of

__all__ = ["PEagleAlgorithm", "register_model", "wrap_handle_speculative_decoding"]

_TOKEN_BY_TOKEN = ("EAGLE", "EAGLE3", "NEXTN")
_FLAG = "--speculative-num-draft-tokens"


class PEagleAlgorithm(CustomSpecAlgo):
    """EAGLE-3 to the rest of SGLang: hidden states of the target, a draft KV cache, verification."""

    def is_eagle(self) -> bool:
        return True

    def is_eagle3(self) -> bool:
        return True

    def need_topk(self) -> bool:
        return True

    def carries_draft_hidden_states(self) -> bool:
        return True

    def supports_grammar_overlap(self) -> bool:
        return True

    def handle_server_args(self, server_args: Any) -> None:
        """``wrap_handle_speculative_decoding`` has been there before."""
        from sglang.srt.arg_groups.speculative_hook import _handle_eagle_family

        asks()
        _handle_eagle_family(server_args)

    def resolve_max_speculative_num_draft_tokens(self, server_args: Any) -> int | None:
        """Sizes what is reserved of the KV cache: a pass needs more places than a verification."""
        width: int | None = super().resolve_max_speculative_num_draft_tokens(server_args)
        return None if width is None else max(width, rows_of_pass(drafts_of(width)))

    def get_num_tokens_per_req_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
        """What is reserved for the pass is no width of a verification."""
        from sglang.srt.runtime_context import get_spec

        steps: int = get_spec().speculative_num_steps
        return num_draft_tokens if is_draft_worker else min(num_draft_tokens, width_of(steps))

    def create_future_map(self, device: Any, req_to_token_pool: Any, *more: Any, **named: Any) -> Any:
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, *more, **named)


def register_model() -> None:
    """In a process that loads the head."""
    from sglang.srt.models.registry import ModelRegistry

    if not ModelRegistry.is_arch_supported(ARCHITECTURE):
        from specctl_sglang.compat.peagle_model import SpecctlPEagle

        # Its own way to register takes a package that holds nothing else.
        ModelRegistry.models[ARCHITECTURE] = SpecctlPEagle


def wrap_handle_speculative_decoding(original: Any) -> Any:
    """In the process that reads the command line. What it raises refuses the start."""

    def handle_speculative_decoding(server_args: Any) -> Any:
        return _handle(original, server_args)

    return handle_speculative_decoding


def _handle(original: Any, server_args: Any) -> Any:
    from sglang.srt.arg_groups.overrides import resolving_view

    asked = resolving_view(server_args)
    algorithm = (asked.speculative_algorithm or "").upper()
    if algorithm == PEAGLE:
        _put_head(server_args, asked)
    elif algorithm in _TOKEN_BY_TOKEN and asked.speculative_draft_model_path:
        folder = Path(asked.speculative_draft_model_path)
        refuse_peagle_head(folder, algorithm, f"--speculative-algorithm {PEAGLE}")
    return original(server_args)


def _put_head(server_args: Any, asked: Any) -> None:
    from sglang.srt.arg_groups.overrides import declare_resolution, model_config_of

    refuse_modes(
        PEAGLE,
        asked,
        enable_multi_layer_eagle=asked.enable_multi_layer_eagle,
        speculative_use_rejection_sampling=asked.speculative_use_rejection_sampling,
    )
    drafts = _drafts(asked)
    if not asked.speculative_draft_model_path:
        raise ValueError(f"{PEAGLE}: --speculative-draft-model-path: expected a P-EAGLE head, got nothing")
    model = model_config_of(server_args)
    target = HeadTarget(model.hidden_size, model.vocab_size, model.num_hidden_layers)
    folder = prepared_head(_folder(asked), target, drafts, _token_map(asked))
    declare_resolution(
        server_args,
        "specctl.peagle",
        speculative_draft_model_path=str(folder),
        speculative_num_steps=drafts,
        speculative_num_draft_tokens=width_of(drafts),
        speculative_eagle_topk=1,
        # SGLang would say that a head of the EAGLE-3 kind has no use for one.
        speculative_token_map=None,
    )


def _token_map(asked: Any) -> list[int] | None:
    """A file as SGLang's EAGLE takes it: a list of ids, by torch.save."""
    from sglang.srt.speculative.spec_utils import load_token_map

    if asked.speculative_token_map is None:
        return None
    ids: list[int] = load_token_map(asked.speculative_token_map).tolist()
    return ids


def _drafts(asked: Any) -> int:
    """num_speculative_tokens, by either of SGLang's flags."""
    steps, width, topk = (
        asked.speculative_num_steps,
        asked.speculative_num_draft_tokens,
        asked.speculative_eagle_topk,
    )
    if topk not in (None, 1):
        raise ValueError(f"{PEAGLE}: --speculative-eagle-topk: expected 1, got {topk}")
    drafts: int | None = steps if width is None else drafts_of(width)
    if drafts is None or drafts < 1:
        raise ValueError(f"{PEAGLE}: {_FLAG}: expected at least 2, one more than are drafted, got {width}")
    if steps not in (None, drafts):
        raise ValueError(f"{PEAGLE}: --speculative-num-steps: expected {drafts}, {_FLAG} less 1, got {steps}")
    return drafts


def _folder(asked: Any) -> Path:
    """Of a head that is named as on a hub, the folder that the hub's client keeps it in."""
    folder = Path(asked.speculative_draft_model_path)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            asked.speculative_draft_model_path,
            revision=asked.speculative_draft_model_revision,
            allow_patterns=["*.json", "*.safetensors", "*.bin", "*.model"],
        )
    )
