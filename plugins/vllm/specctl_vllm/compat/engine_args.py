"""Reads ``--speculative-config`` before vLLM does."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import Any

from specctl.engine.engine_check import problems_of
from specctl.engine.patches import PatchConflict, check_conflicts, install
from specctl.engine.peagle_checkpoint import check_peagle_checkpoint
from specctl.engine.releases import untested_reason
from specctl_vllm.adapter import ADAPTER
from specctl_vllm.compat import decode_graphs, model_runner_v2
from specctl_vllm.compat.machine import engine_version
from specctl_vllm.options import (
    HEAD_METHODS,
    OPTIONS_ENV,
    Options,
    options_from_env,
    parse_speculative_config,
)
from specctl_vllm.patches import ENGINE, SERVER, for_method, of_server

__all__ = ["wrap_create_speculative_config", "wrap_load_endpoint_plugins"]

logger = logging.getLogger("vllm.specctl")
_FLAGS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}


def wrap_create_speculative_config(original: Any) -> Any:
    @functools.wraps(original)
    def create_speculative_config(self: Any, target_model_config: Any, *args: Any, **kwargs: Any) -> Any:
        asked = _asked(self)
        is_on_device = bool(asked) and model_runner_v2.runs_on_device()
        parsed = parse_speculative_config(asked, is_on_device) if asked else None
        if parsed is None:
            os.environ.pop(OPTIONS_ENV, None)
            return original(self, target_model_config, *args, **kwargs)
        config, options = parsed
        reason = _why_not(options, is_on_device, self.pipeline_parallel_size)
        if reason is not None:
            return _refuse(
                self, original, options.method, asked, reason, target_model_config, *args, **kwargs
            )
        if options.method in HEAD_METHODS and config.get("parallel_drafting"):
            _check_head(config, target_model_config)
        if is_on_device:
            most = options.control.graph_tokens_max
            decode_graphs.ask_for_wide_graphs(self, most, target_model_config)
        elif options.method == "specctl_hybrid":
            # Its drafts are chosen on the host.
            self.async_scheduling = False
        os.environ[OPTIONS_ENV] = options.model_dump_json()
        return _with_config(self, config, original, target_model_config, *args, **kwargs)

    return create_speculative_config


def _why_not(options: Options, is_on_device: bool, pipeline_size: int) -> str | None:
    """Why nothing of ours is in force; None: our part of every process is."""
    if pipeline_size > 1 and not is_on_device:
        return "vLLM's Model Runner V1 does not start with pipeline parallelism and speculation"
    reason = untested_reason("vllm", engine_version(), options.control.untested_engine)
    if reason is not None:
        return reason
    problems = [one.words for one in problems_of(ADAPTER) if one.concerns(options.method)]
    if problems:
        return f"it does not fit this vLLM: {'; '.join(problems)}"
    try:
        check_conflicts(of_server(is_on_device, options))
        install(for_method((*ENGINE, *SERVER), options.method))
    except PatchConflict as error:
        return str(error)
    return None


def _asked(engine_args: Any) -> dict[str, Any]:
    """The user's config, the short flags --spec-method, --spec-model and --spec-tokens included."""
    asked = dict(engine_args.speculative_config or {})
    for flag, key in _FLAGS.items():
        if getattr(engine_args, flag) is not None:
            asked.setdefault(key, getattr(engine_args, flag))
    return asked


def _check_head(config: dict[str, Any], target: Any) -> None:
    """Before any weight is read. A name on a hub is checked by vLLM alone, when it loads the head."""
    folder = Path(config["model"])
    if folder.is_dir() and target is not None:
        check_peagle_checkpoint(
            folder,
            target_hidden_size=target.get_hidden_size(),
            target_vocab_size=target.get_vocab_size(),
            num_speculative_tokens=config["num_speculative_tokens"],
            target_num_hidden_layers=target.get_total_num_hidden_layers(),
        )


def _with_config(engine_args: Any, config: dict[str, Any], original: Any, *args: Any, **kwargs: Any) -> Any:
    kept = {name: getattr(engine_args, name) for name in ("speculative_config", *_FLAGS)}
    for name in _FLAGS:
        setattr(engine_args, name, None)
    engine_args.speculative_config = config
    try:
        return original(engine_args, *args, **kwargs)
    finally:
        for name, value in kept.items():
            setattr(engine_args, name, value)


def _refuse(
    engine_args: Any,
    original: Any,
    method: str,
    asked: dict[str, Any],
    reason: str,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """This vLLM is not as expected: a method of ours cannot run, a stock method runs as stock."""
    os.environ.pop(OPTIONS_ENV, None)
    if method.startswith("specctl_"):
        raise ValueError(f"{method} cannot run: {reason}")
    logger.error("specctl: %s. The server runs without specctl.", reason)
    stock = {key: value for key, value in asked.items() if key != "specctl"}
    return _with_config(engine_args, stock, original, *args, **kwargs)


def wrap_load_endpoint_plugins(original: Any) -> Any:
    @functools.wraps(original)
    def load_endpoint_plugins(supported_tasks: Any = None) -> Any:
        loaded = original(supported_tasks)
        if options_from_env() is not None and not any(plugin.name == "specctl" for plugin in loaded):
            from specctl_vllm.control.endpoint import SpecctlEndpointPlugin

            loaded.append(SpecctlEndpointPlugin())
        return loaded

    return load_endpoint_plugins
