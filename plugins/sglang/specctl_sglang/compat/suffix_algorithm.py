"""What SGLang asks of an algorithm that it does not know, for SPECCTL_SUFFIX."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

__all__ = ["SuffixAlgorithm"]


class SuffixAlgorithm(CustomSpecAlgo):
    """Claims to be NGRAM, so that its verify input is used, and fills what SGLang's base class leaves out."""

    def is_ngram(self) -> bool:
        return True

    def has_draft_kv(self) -> bool:
        return False

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def handle_server_args(self, server_args: Any) -> None:
        from sglang.srt.arg_groups.speculative_hook import _handle_ngram

        _handle_ngram(server_args)

    def create_future_map(self, device: Any, req_to_token_pool: Any, **more: Any) -> Any:
        from specctl_sglang.compat.host_relay import HostRelayMap

        return HostRelayMap(device, self, req_to_token_pool, **more)
