"""The releases of each engine that this version was tested with: the one place that names them."""

from __future__ import annotations

import os
import re

__all__ = ["ALLOW_ENV", "TESTED", "untested_reason"]

TESTED: dict[str, tuple[str, ...]] = {
    "vllm": ("0.32.0", "0.33.0"),
    "sglang": ("0.5.21", "0.5.22", "0.5.23"),
}
ALLOW_ENV = "SPECCTL_UNTESTED_ENGINE"


def untested_reason(engine: str, version: str, option: str | None = None) -> str | None:
    """Why a plugin stays out of this engine; None: it was tested, or the user allows it all the same.

    option: ``untested_engine`` of the user's specctl options, ``allow`` or nothing.
    A local part (``0.33.0+cpu``) is the same release; a nightly (``0.34.0.dev3``, ``0.33.1rc1``) is not.
    """
    release = version.partition("+")[0]
    if release in TESTED[engine] or "allow" in (option, os.environ.get(ALLOW_ENV)):
        return None
    tested = ", ".join(TESTED[engine])
    kind = "" if re.fullmatch(r"\d+(\.\d+)*", release) else "the pre-release "
    return (
        f"{engine} {kind}{version} was not tested with this version of specctl (tested: {tested}); to use it "
        f'all the same set {ALLOW_ENV}=allow, or "untested_engine": "allow" among the options'
    )
