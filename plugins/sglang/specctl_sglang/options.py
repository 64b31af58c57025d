"""Options of the plugin, in one environment variable: SGLang's command line takes no others."""

from __future__ import annotations

import difflib
import os
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from specctl.engine.options import ControlOptions, SuffixOptions
from specctl_sglang.terms import DFLASH, PEAGLE, SUFFIX

__all__ = ["OPTIONS_ENV", "VERIFIED_BY_DEFAULT", "Options", "options_from_env"]

OPTIONS_ENV = "SPECCTL_SGLANG_OPTIONS"
"""A JSON object. Set, it also asks for the routes and the table of stock algorithms."""
VERIFIED_BY_DEFAULT = (SUFFIX, PEAGLE)
"""Algorithms whose drafts our kernels verify where ``verify`` is not given."""


_Count = Annotated[int, Field(ge=1, le=1024)]
_Tree = tuple[_Count, _Count, _Count]


class Options(ControlOptions):
    """What SPECCTL_SGLANG_OPTIONS may hold."""

    candidates: tuple[Annotated[int, Field(ge=0, le=1023)], ...] | None = Field(
        default=None,
        description="depths of chains that are prepared at start and that a table may name; without it "
        "every one on a CPU, a dozen up to the longest on a GPU, where each takes graphs of its own",
    )
    trees: tuple[_Tree, ...] | None = Field(
        default=None,
        description="trees that are prepared beside the server's own, each as [num_speculative_tokens, "
        "tree_topk, verify_width_tokens]; without it smaller ones than its own, three on a GPU",
    )
    verify: Literal["engine", "specctl"] | None = Field(
        default=None,
        description="on an NVIDIA GPU: whose kernels verify drafts; without it ours those of our algorithms",
    )
    suffix: SuffixOptions = SuffixOptions()

    def verifies(self, algorithm: str) -> bool:
        """Whether our kernels do, on an NVIDIA GPU. algorithm: as given to SGLang."""
        if algorithm.upper() == DFLASH:  # has a verification of its own
            return False
        return self.verify == "specctl" or (self.verify is None and algorithm.upper() in VERIFIED_BY_DEFAULT)

    def checks_answers(self, data_parallel_size: int) -> bool:
        return self.verify_shadow_ratio > 0 and data_parallel_size == 1


def options_from_env() -> Options | None:
    """None: not set. Raises ValueError that names key, value and what is allowed."""
    text = os.environ.get(OPTIONS_ENV)
    if text is None:
        return None
    try:
        return Options.model_validate_json(text or "{}")
    except ValidationError as error:
        raise ValueError(f"{OPTIONS_ENV}: {_words(error.errors()[0])}") from None


def _words(first: Any) -> str:
    key = ".".join(map(str, first["loc"]))
    if first["type"] != "extra_forbidden":
        return f"{key or 'the value'}: {first['msg']}, got {first['input']!r}"
    model = SuffixOptions if first["loc"][0] == "suffix" else Options
    allowed = sorted(model.model_fields)
    nearest = difflib.get_close_matches(str(first["loc"][-1]), allowed, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"allowed: {', '.join(allowed)}"
    return f"there is no option {key!r}; {hint}"
