"""Entry point ``sglang.srt.plugins``: runs in every process of SGLang, before the engine is built.

A server that names neither an algorithm of ours nor SPECCTL_SGLANG_OPTIONS gets the algorithms' names and the
routes, and runs as it would without.
"""

from __future__ import annotations

import logging
import multiprocessing
import os

from specctl_sglang.compat.canary import missing_seams
from specctl_sglang.options import OPTIONS_ENV, Options, options_from_env

__all__ = ["register"]

logger = logging.getLogger("sglang.specctl")
_CHECKED_ENV = "SPECCTL_SGLANG_CHECKED"


def register() -> None:
    """Called by SGLang once in each process. Ends a server whose options are wrong."""
    try:
        options = options_from_env()
        _refuse_verify_without_gpu(options)
    except ValueError as error:
        raise SystemExit(f"specctl: {error}") from None
    missing = [] if os.environ.get(_CHECKED_ENV) else missing_seams()
    if missing:
        # SGLang only logs what a plugin raises; an algorithm that is not registered is refused by its name.
        reason = f"specctl does not fit this SGLang and registers nothing: {'; '.join(missing)}"
        logger.error("%s. The server runs without it.", reason)
        _tell(reason)
        return
    # Read by the processes that this one starts.
    os.environ[_CHECKED_ENV] = "1"
    from specctl_sglang.compat import algorithms

    algorithms.register()
    if multiprocessing.parent_process() is not None:
        _register_in_engine(options)
        return
    from specctl_sglang.compat import http_routes

    try:
        http_routes.install(options or Options())
    except ValueError as error:
        raise SystemExit(f"specctl: {error}") from None


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
    from specctl_sglang.compat import algorithms, cpu_stand_ins, scheduler

    scheduler.install()
    if options is not None:
        algorithms.steer_stock()
    cpu_stand_ins.attend_to_trees()
    _install_verification(options or Options())


def _install_verification(options: Options) -> None:
    from specctl_sglang.compat.machine import has_nvidia_gpu

    if options.verify == "engine" or not has_nvidia_gpu():
        return
    try:
        from specctl_sglang.compat import verification

        verification.install(options)
    except Exception:
        logger.exception("specctl: SGLang verifies, our kernels cannot be loaded")
