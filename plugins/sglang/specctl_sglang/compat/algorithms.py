"""Names for ``--speculative-algorithm``."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from specctl_sglang.terms import SUFFIX

__all__ = ["register"]


def register() -> None:
    """Workers are imported when one is built: their modules load the model's."""
    from specctl_sglang.compat.suffix_algorithm import SuffixAlgorithm

    SpeculativeAlgorithm.register(SUFFIX, supports_overlap=True, spec_class=SuffixAlgorithm)(_suffix_worker)


def _suffix_worker(_server_args: Any) -> type:
    from specctl_sglang.compat.suffix_worker import SuffixWorker

    return SuffixWorker
