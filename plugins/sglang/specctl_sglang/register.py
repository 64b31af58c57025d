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

from specctl.engine.engine_check import problems_of
from specctl.engine.guard import GUARD
from specctl.engine.patches import Patch, PatchConflict
from specctl.engine.releases import untested_reason
from specctl_sglang.adapter import ADAPTER
from specctl_sglang.asked import ASKED_ENV, CHECKED_ENV, may_ask, misfits
from specctl_sglang.options import OPTIONS_ENV, Options, options_from_env
from specctl_sglang.patches import CPU, of_process

__all__ = ["register"]

logger = logging.getLogger("sglang.specctl")
_NOT_ASKED = f"this server was started with no algorithm of specctl, and without {OPTIONS_ENV}"


@cache
def register() -> None:
    """Called by SGLang in each process; a second time does nothing. Ends a server whose options are wrong."""
    try:
        options = options_from_env()
        _refuse_verify_without_gpu(options)
    except ValueError as error:
        raise SystemExit(f"specctl: {error}") from None
    reason = None if os.environ.get(CHECKED_ENV) else _why_not(options)
    if reason is not None:
        # SGLang only logs what a plugin raises; an algorithm that is not registered is refused by its name.
        logger.error("specctl registers nothing: %s. The server runs without it.", reason)
        _tell(f"specctl registers nothing: {reason}")
        return
    from specctl_sglang.compat import algorithms

    algorithms.register(misfits())
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
        hooks.register([one for one in of_process("server", "command line") if not _is_lost(one)])
    except ValueError as error:
        raise SystemExit(f"specctl: {error}") from None
    except PatchConflict as error:
        logger.error("specctl: %s. The server runs without specctl.", error)


def _why_not(options: Options | None) -> str | None:
    """Why this SGLang stays as it is; None: it was tested and is as we expect it, but for what some methods
    need. Those are in CHECKED_ENV then, for the processes that this one starts."""
    allowed = None if options is None else options.untested_engine
    untested = untested_reason("sglang", version("sglang"), allowed)
    if untested is not None:
        return untested
    problems = problems_of(ADAPTER)
    common = [one.words for one in problems if not one.methods]
    if common:
        return f"it does not fit this SGLang: {'; '.join(common)}"
    for one in problems:
        logger.error("specctl: %s cannot run on this SGLang: %s", ", ".join(sorted(one.methods)), one.words)
    lost = sorted({method for one in problems for method in one.methods})
    os.environ[CHECKED_ENV] = ",".join(["checked", *lost])
    return None


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
    return (options is not None or not patch.methods) and not _is_lost(patch)


def _is_lost(patch: Patch) -> bool:
    """Whether no method is left that needs it."""
    return bool(patch.methods) and patch.methods <= misfits()


def _install_verification(options: Options) -> None:
    if options.verify == "engine":
        return
    try:
        from specctl_sglang.compat import verification

        verification.install(options)
    except Exception:
        logger.exception("specctl: SGLang verifies, our kernels cannot be loaded")
