"""What SGLang asks of an algorithm that it does not know, for SPECCTL_SUFFIX."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from specctl_sglang.asked import asks
from specctl_sglang.compat.refused_modes import refuse_modes
from specctl_sglang.terms import SUFFIX

__all__ = ["SuffixAlgorithm", "branches_asked"]

_BREADTH = 10
"""SGLang's own for NGRAM, where nobody asks for another."""


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
        """Chains unless trees are asked for: with a breadth over 1 every verification goes by a mask, and
        SGLang takes another attention than without speculation, also where nothing is drafted."""
        from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
        from sglang.srt.arg_groups.speculative_hook import _handle_ngram

        asks()

        asked = resolving_view(server_args)
        refuse_modes(SUFFIX, asked)
        branches = branches_asked(asked.speculative_eagle_topk, asked.speculative_ngram_max_bfs_breadth)
        declare_resolution(server_args, "specctl.suffix", speculative_ngram_max_bfs_breadth=branches)
        _handle_ngram(server_args)

    def create_future_map(self, device: Any, req_to_token_pool: Any, **more: Any) -> Any:
        from specctl_sglang.compat.host_relay import HostRelayMap

        return HostRelayMap(device, self, req_to_token_pool, **more)


def branches_asked(speculative_eagle_topk: int | None, speculative_ngram_max_bfs_breadth: int) -> int:
    """The most of a tree, by either of SGLang's flags."""
    if speculative_eagle_topk is not None:
        return speculative_eagle_topk
    return 1 if speculative_ngram_max_bfs_breadth == _BREADTH else speculative_ngram_max_bfs_breadth
