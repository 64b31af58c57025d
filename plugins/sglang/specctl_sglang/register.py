"""Entry point ``sglang.srt.plugins``: runs in every process of SGLang, before the engine is built.

A server that names neither an algorithm of ours nor SPECCTL_SGLANG_OPTIONS gets the algorithms' names and the
routes, and runs as it would without.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from functools import cache
from importlib.metadata import version

import torch

from specctl.engine.guard import GUARD
from specctl.engine.patches import Patch, PatchConflict
from specctl.engine.releases import untested_reason
from specctl_sglang.asked import ASKED_ENV, may_ask
from specctl_sglang.compat.canary import missing_seams
from specctl_sglang.options import OPTIONS_ENV, Options, options_from_env
from specctl_sglang.patches import CPU, of_process

__all__ = ["register"]

logger = logging.getLogger("sglang.specctl")
_NOT_ASKED = f"this server was started with no algorithm of specctl, and without {OPTIONS_ENV}"
_CHECKED_ENV = "SPECCTL_SGLANG_CHECKED"


@cache
def register() -> None:
    """Called by SGLang in each process; a second time does nothing. Ends a server whose options are wrong."""
    try:
        options = options_from_env()
        _refuse_verify_without_gpu(options)
    except ValueError as error:
        raise SystemExit(f"specctl: {error}") from None
    reason = None if os.environ.get(_CHECKED_ENV) else _why_not(options)
    if reason is not None:
        # SGLang only logs what a plugin raises; an algorithm that is not registered is refused by its name.
        logger.error("specctl registers nothing: %s. The server runs without it.", reason)
        _tell(f"specctl registers nothing: {reason}")
        return
    # Read by the processes that this one starts.
    os.environ[_CHECKED_ENV] = "1"
    from specctl_sglang.compat import algorithms

    algorithms.register()
    GUARD.log = logger
    if multiprocessing.parent_process() is not None:
        if options is not None or os.environ.get(ASKED_ENV):
            _register_in_engine(options)
        return
    from specctl_sglang.compat import hooks, http_routes

    try:
        if not may_ask(options):
            http_routes.attach_closed(_NOT_ASKED)
            return
        http_routes.install(options or Options())
        hooks.register(of_process("server", "command line"))
    except ValueError as error:
        raise SystemExit(f"specctl: {error}") from None
    except PatchConflict as error:
        logger.error("specctl: %s. The server runs without specctl.", error)


def _why_not(options: Options | None) -> str | None:
    """Why this SGLang stays as it is; None: it was tested and has every name that is relied on."""
    allowed = None if options is None else options.untested_engine
    untested = untested_reason("sglang", version("sglang"), allowed)
    missing = missing_seams() if untested is None else []
    return untested or (f"it does not fit this SGLang: {'; '.join(missing)}" if missing else None)


def _tell(reason: str) -> None:
    """By the routes, where this SGLang lets us have them: a daemon sees no log."""
    if multiprocessing.parent_process() is not None:
        return
    try:
        from specctl_sglang.compat import http_routes

        http_routes.attach_closed(reason)
    except Exception:
        logger.exception("specctl: there are no routes under /specctl/v1/ to tell it by")


def _refuse_verify_without_gpu(options: Options | None) -> None:
    if options is None or options.verify != "specctl":
        return
    from specctl_sglang.compat.machine import has_nvidia_gpu

    if not has_nvidia_gpu():
        raise ValueError(
            f"{OPTIONS_ENV}: verify: specctl needs an NVIDIA GPU, and there is none: its kernels are "
            "Triton's, which do not run on a CPU; expected engine, or nothing"
        )


def _register_in_engine(options: Options | None) -> None:
    from specctl_sglang.compat import hooks
    from specctl_sglang.compat.machine import has_nvidia_gpu

    wanted = [patch for patch in of_process("engine", "worker") if _serves(patch, options)]
    try:
        hooks.register(wanted)
    except (PatchConflict, AttributeError, ImportError) as error:
        logger.error("specctl: %s. The server drafts what it was started with.", error)
        return
    if has_nvidia_gpu():
        _install_verification(options or Options())


def _serves(patch: Patch, options: Options | None) -> bool:
    if patch.methods & {"specctl_suffix", "specctl_peagle"} == patch.methods and patch.methods:
        return False  # ``compat.algorithms`` puts these in force with the algorithm's worker
    if CPU in patch.methods:
        return not torch.cuda.is_available()
    return options is not None or not patch.methods


def _install_verification(options: Options) -> None:
    if options.verify == "engine":
        return
    try:
        from specctl_sglang.compat import verification

        verification.install(options)
    except Exception:
        logger.exception("specctl: SGLang verifies, our kernels cannot be loaded")
