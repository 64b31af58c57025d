"""Whether a server asks for specctl, by one of its algorithms or by its options; others are left alone."""

from __future__ import annotations

import os
import sys

from specctl_sglang.options import Options

__all__ = ["ASKED_ENV", "CHECKED_ENV", "asks", "may_ask", "misfits"]

ASKED_ENV = "SPECCTL_SGLANG_ASKED"
"""Set for the processes of a server that runs an algorithm of ours."""
CHECKED_ENV = "SPECCTL_SGLANG_CHECKED"
"""Set once SGLang was checked: ``checked``, and the methods that cannot run on it."""


def misfits() -> frozenset[str]:
    """Methods that this SGLang lacks something for, by the contract's names."""
    return frozenset(os.environ.get(CHECKED_ENV, "").split(",")[1:])


def asks() -> None:
    """An algorithm of ours was named; called where SGLang reads its arguments, before it starts processes."""
    os.environ[ASKED_ENV] = "1"


def may_ask(options: Options | None) -> bool:
    """By the command line, before it is read. One that names a model and neither a config file nor an
    algorithm of ours does not; another program's tells nothing."""
    words = " ".join(sys.argv).lower()
    is_plain_server = "--model" in words and "--config" not in words
    has_asked = options is not None or bool(os.environ.get(ASKED_ENV))
    return has_asked or "specctl_" in words or not is_plain_server
