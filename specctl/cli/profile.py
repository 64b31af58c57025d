"""``specctl profile TARGET``: step costs of a running server, as an engine profile."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from specctl.errors import SpecctlError

if TYPE_CHECKING:
    from specctl.clock import Clock
    from specctl.contract.capabilities import Capabilities
    from specctl.engine_profile import EngineProfile, Fingerprint
    from specctl.http_client import HttpClient
    from specctl.profiling.measure import Measured

__all__ = ["add_arguments", "profile"]

logger = logging.getLogger(__name__)

SECONDS, SECONDS_MIN, SECONDS_MAX = 60.0, 5.0, 110.0
SHARE, SHARE_MIN, SHARE_MAX = 0.2, 0.02, 0.5
REQUESTS_MAX = 10_000
PATIENCE_S = 5.0
FINGERPRINT = ("gpu", "model", "engine", "dtype", "parallelism")
LIMITS = ("max_num_batched_tokens", "kv_tokens", "kv_block_tokens")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The command line; parsing needs no HTTP client and no fit."""
    command.add_argument("target", metavar="TARGET")
    command.add_argument(
        "--output", type=Path, metavar="FILE.yaml", help="default: named after the fingerprint"
    )
    command.add_argument(
        "--for", dest="for_s", type=_between(SECONDS_MIN, SECONDS_MAX), default=SECONDS, metavar="SECONDS",
        help=f"at most; default: {SECONDS:g}",
    )  # fmt: skip
    command.add_argument(
        "--share", type=_between(SHARE_MIN, SHARE_MAX), default=SHARE, metavar="F",
        help=f"of that time under another table than the present one, at most; default: {SHARE:g}",
    )  # fmt: skip
    command.add_argument(
        "--requests", type=_requests, metavar="N", help="send at most N requests to a server without traffic"
    )
    command.add_argument(
        "--fingerprint", type=_one_of(FINGERPRINT), action="append", default=[], metavar="KEY=VALUE",
        help=f"in place of what the server tells: {', '.join(FINGERPRINT)}; repeat",
    )  # fmt: skip
    command.add_argument(
        "--scheduler", type=_one_of(LIMITS), action="append", default=[], metavar="KEY=VALUE",
        help=f"in place of what the server tells: {', '.join(LIMITS)}; repeat",
    )  # fmt: skip
    command.add_argument(
        "--token-file", type=Path, metavar="FILE", help="bearer token with the control scope"
    )
    command.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="the server's own key, for --requests"
    )


def profile(options: argparse.Namespace) -> int:
    """Raises SpecctlError; the table is put back before. Prints what was measured and where it is."""
    asyncio.run(_profile(options))
    return 0


async def _profile(options: argparse.Namespace) -> None:
    from specctl.clock import SystemClock
    from specctl.controller.daemon import stop_on_signals
    from specctl.errors import ContractError
    from specctl.estimate.cost_fit import fit_costs
    from specctl.estimate.experts import Experts
    from specctl.http_client import HttpClient, normalise_target, read_token
    from specctl.observe.routes import read_capabilities
    from specctl.profiling.fitted import engine_profile, fingerprint_of, limits_of

    stop = asyncio.Event()
    stop_on_signals(stop)
    clock = SystemClock()
    target = normalise_target(options.target)
    token = None if options.token_file is None else read_token(options.token_file)
    async with HttpClient(target, token=token, timeout_s=PATIENCE_S) as client:
        capabilities = await read_capabilities(client)
        if capabilities is None:
            raise ContractError(f"{target}: without the specctl plugin a server's steps cannot be measured")
        # Whatever can be refused is refused before anything is measured.
        fingerprint = fingerprint_of(capabilities, dict(options.fingerprint))
        limits = limits_of(capabilities, dict(options.scheduler))
        output = options.output or Path(_file_name(fingerprint))
        if not os.access(output.parent, os.W_OK) or output.is_dir():
            raise SpecctlError(f"{output}: cannot be written there")
        measured = await _measure(client, capabilities, options, clock, stop)
    if measured.is_interrupted:
        raise SpecctlError("interrupted: the table is as it was found, and no profile is written")
    costs = fit_costs(measured.rows, experts=Experts.of(capabilities))
    made = engine_profile(measured, costs, capabilities, fingerprint, limits, utc=clock.utc())
    _write(output, made)
    print("\n".join(_words(made, output)))


async def _measure(
    client: HttpClient,
    capabilities: Capabilities,
    options: argparse.Namespace,
    clock: Clock,
    stop: asyncio.Event,
) -> Measured:
    from specctl.cli.autotune import owner_name
    from specctl.http_client import read_token
    from specctl.profiling.measure import Plan
    from specctl.profiling.server import measure_server

    key = None if options.api_key_file is None else read_token(options.api_key_file)
    logger.info("measuring %s for at most %g s", client.target, options.for_s)
    return await measure_server(
        client, capabilities, clock, stop, Plan(options.for_s, options.share),
        owner=owner_name("profile"), requests=options.requests, key=key,
    )  # fmt: skip


def _write(path: Path, made: EngineProfile) -> None:
    """Whole or not at all."""
    import yaml

    text = "# Step costs of a running server, measured by `specctl profile`.\n"
    text += yaml.safe_dump(made.model_dump(mode="json"), sort_keys=False, width=110, allow_unicode=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise SpecctlError(f"{path}: cannot be written: {error.strerror or error}") from error


def _words(made: EngineProfile, path: Path) -> list[str]:
    measured = made.measured
    assert measured is not None, "just measured"
    numbers = ", ".join(map(str, measured.num_speculative_tokens))
    lines = [
        f"{path}: {made.fingerprint.model} {made.fingerprint.dtype} on {made.fingerprint.gpu} "
        f"({made.fingerprint.parallelism}), {made.fingerprint.engine}",
        f"  measured    {measured.seconds:.0f} s, {measured.steps} steps of up to "
        f"{measured.decode_batch_most} requests, with {numbers} drafts; {measured.own_requests} own requests",
        f"  disturbed   {measured.disturbed_s_ratio:.1%} of the time, {measured.disturbed_steps_ratio:.1%} "
        "of the steps",
        f"  miss        {measured.miss_ratio:.1%}; of the half that a fit did not see "
        f"{measured.held_out_miss_ratio:.1%}",
    ]
    if measured.not_told:
        lines.append(f"  not told    {', '.join(measured.not_told)}: the load did not vary enough; left at 0")
    return lines


def _file_name(fingerprint: Fingerprint) -> str:
    parts = [getattr(fingerprint, key) for key in FINGERPRINT]
    parts[1] = parts[1].rstrip("/").rpartition("/")[2]
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", part) for part in parts) + ".yaml"


class _between:
    """A number from ``low`` to ``high``, for argparse."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self._low <= value <= self._high:
            raise argparse.ArgumentTypeError(f"expected {self._low:g} to {self._high:g}, got {text!r}")
        return value


class _one_of:
    """KEY=VALUE with a known key, for argparse."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys

    def __call__(self, text: str) -> tuple[str, str]:
        key, separator, value = text.partition("=")
        if key not in self._keys or not separator or not value:
            raise argparse.ArgumentTypeError(
                f"expected KEY=VALUE with one of {', '.join(self._keys)}, got {text!r}"
            )
        return key, value


def _requests(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= value <= REQUESTS_MAX:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {REQUESTS_MAX}, got {text!r}")
    return value
