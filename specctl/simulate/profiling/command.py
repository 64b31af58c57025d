"""``specctl profile TARGET``: step costs of a running server, as an engine profile."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import math
import os
import re
from pathlib import Path

from specctl.clock import Clock, SystemClock
from specctl.contract.capabilities import Capabilities
from specctl.daemon.fleet import stop_on_signals
from specctl.engine_api.client import EngineClient
from specctl.engine_api.owner import owner_name
from specctl.errors import ContractError, SpecctlError
from specctl.http_client import HttpClient, normalise_target, read_token
from specctl.simulate.engine_profile import EngineProfile, Fingerprint
from specctl.simulate.profiling.fitted import engine_profile, experts_of, fingerprint_of, limits_of
from specctl.simulate.profiling.measure import Measured, Plan
from specctl.simulate.profiling.server import measure_server
from specctl.yaml_text import dump_yaml

__all__ = ["add_arguments", "run"]

logger = logging.getLogger(__name__)

SECONDS, SECONDS_MIN, SECONDS_MAX = 60.0, 5.0, 110.0
SHARE, SHARE_MIN, SHARE_MAX = 0.2, 0.02, 0.5
REQUESTS_MAX = 10_000
PATIENCE_S = 5.0
FINGERPRINT = ("gpu", "model", "engine", "dtype", "parallelism")
LIMITS = ("max_num_batched_tokens", "kv_tokens", "kv_block_tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument(
        "--output", type=Path, metavar="FILE.yaml", help="default: named after the fingerprint"
    )
    parser.add_argument(
        "--for", dest="for_s", type=_between(SECONDS_MIN, SECONDS_MAX), default=SECONDS, metavar="SECONDS",
        help=f"at most; default: {SECONDS:g}",
    )  # fmt: skip
    parser.add_argument(
        "--share", type=_between(SHARE_MIN, SHARE_MAX), default=SHARE, metavar="F",
        help=f"of that time under another table than the present one, at most; default: {SHARE:g}",
    )  # fmt: skip
    parser.add_argument(
        "--requests", type=_requests, metavar="N", help="send at most N requests to a server without traffic"
    )
    parser.add_argument(
        "--fingerprint", type=_one_of(FINGERPRINT), action="append", default=[], metavar="KEY=VALUE",
        help=f"in place of what the server reports: {', '.join(FINGERPRINT)}; repeat",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler", type=_one_of(LIMITS), action="append", default=[], metavar="KEY=VALUE",
        help=f"in place of what the server reports: {', '.join(LIMITS)}; repeat",
    )  # fmt: skip
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="bearer token with the control scope")
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="the server's own key, for --requests"
    )


def run(options: argparse.Namespace) -> int:
    """Raises SpecctlError; the table is put back before. Prints what was measured and where it is."""
    asyncio.run(_profile(options))
    return 0


async def _profile(options: argparse.Namespace) -> None:
    _need_scikit_learn()
    stop = asyncio.Event()
    stop_on_signals(stop)
    clock = SystemClock()
    target = normalise_target(options.target)
    token = None if options.token_file is None else read_token(options.token_file)
    async with HttpClient(target, token=token, timeout_s=PATIENCE_S) as http:
        client = EngineClient(http)
        capabilities = await client.capabilities()
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
    from specctl.simulate.profiling.cost_fit import fit_costs

    costs = fit_costs(measured.rows, experts_of(capabilities))
    made = engine_profile(measured, costs, capabilities, fingerprint, limits, utc=clock.utc())
    _write(output, made)
    print("\n".join(_words(made, output)))


def _need_scikit_learn() -> None:
    """Before anything is measured."""
    if importlib.util.find_spec("sklearn") is None:
        raise SpecctlError("specctl profile needs scikit-learn: pip install 'specctl-serving[simulate]'")


async def _measure(
    client: EngineClient,
    capabilities: Capabilities,
    options: argparse.Namespace,
    clock: Clock,
    stop: asyncio.Event,
) -> Measured:
    key = None if options.api_key_file is None else read_token(options.api_key_file)
    logger.info("measuring %s for at most %g s", client.target, options.for_s)
    return await measure_server(
        client, capabilities, clock, stop, Plan(options.for_s, options.share),
        owner=owner_name("profile"), requests=options.requests, key=key,
    )  # fmt: skip


def _write(path: Path, made: EngineProfile) -> None:
    """Whole or not at all."""
    text = "# Step costs of a running server, measured by `specctl profile`.\n"
    text += dump_yaml(made.model_dump(mode="json"))
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
    if measured.unidentified:
        names = ", ".join(measured.unidentified)
        lines.append(f"  left at 0   {names}: the load did not vary enough to separate them")
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
