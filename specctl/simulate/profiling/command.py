"""``specctl profile TARGET``: step costs of a running server, as an engine profile."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from specctl.cli.options import FILE, token_file_option
from specctl.clock import Clock, SystemClock
from specctl.contract.capabilities import Capabilities
from specctl.daemon.fleet import stop_on_signals
from specctl.engine_api.client import EngineClient
from specctl.engine_api.owner import owner_name
from specctl.errors import ContractError, SpecctlError, install_words
from specctl.http_client import HttpClient, normalise_target, read_token
from specctl.simulate.engine_profile import EngineProfile, Fingerprint
from specctl.simulate.profiling.fitted import engine_profile, experts_of, fingerprint_of, limits_of
from specctl.simulate.profiling.measure import Measured, Plan
from specctl.simulate.profiling.server import measure_server
from specctl.terminal import clock_progress, examples, json_option, print_json
from specctl.yaml_text import dump_yaml

__all__ = ["profile"]

logger = logging.getLogger(__name__)

SECONDS, SECONDS_MIN, SECONDS_MAX = 60.0, 5.0, 110.0
SHARE, SHARE_MIN, SHARE_MAX = 0.2, 0.02, 0.5
REQUESTS_MAX = 10_000
PATIENCE_S = 5.0
FINGERPRINT = ("gpu", "model", "engine", "dtype", "parallelism")
LIMITS = ("max_num_batched_tokens", "kv_tokens", "kv_block_tokens")


def _between(low: float, high: float) -> Callable[[str], float]:
    """A number from ``low`` to ``high``."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise click.BadParameter(f"expected {low:g} to {high:g}, got {text!r}")
        return value

    return number


def _one_of(keys: tuple[str, ...]) -> Callable[[str], tuple[str, str]]:
    """KEY=VALUE with a known key."""

    def pair(text: str) -> tuple[str, str]:
        key, separator, value = text.partition("=")
        if key not in keys or not separator or not value:
            raise click.BadParameter(f"expected KEY=VALUE with one of {', '.join(keys)}, got {text!r}")
        return key, value

    return pair


def _requests(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= value <= REQUESTS_MAX:
        raise click.BadParameter(f"expected a whole number from 1 to {REQUESTS_MAX}, got {text!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """As given on the command line."""

    target: str
    output: Path | None
    for_s: float
    share: float
    requests: int | None
    fingerprint: tuple[tuple[str, str], ...]
    scheduler: tuple[tuple[str, str], ...]
    token_file: Path | None
    api_key_file: Path | None
    as_json: bool


@click.command(
    epilog=examples(
        "specctl profile http://localhost:8000",
        "specctl profile http://localhost:8000 --requests 200 --output gpu.yaml",
    )
)
@click.argument("target")
@click.option(
    "--output", type=FILE, metavar="FILE.yaml", help="the profile; default: named after the fingerprint"
)
@click.option(
    "--for",
    "for_s",
    type=_between(SECONDS_MIN, SECONDS_MAX),
    default=SECONDS,
    metavar="SECONDS",
    help=f"seconds to measure at most; default: {SECONDS:g}",
)
@click.option(
    "--share",
    type=_between(SHARE_MIN, SHARE_MAX),
    default=SHARE,
    metavar="F",
    help=f"largest fraction of that time under another table; default: {SHARE:g}",
)
@click.option(
    "--requests",
    type=_requests,
    metavar="N",
    help="send at most N requests to a server without traffic; default: none",
)
@click.option(
    "--fingerprint",
    type=_one_of(FINGERPRINT),
    multiple=True,
    metavar="KEY=VALUE",
    help=f"in place of what the server reports: {', '.join(FINGERPRINT)}; repeat",
)
@click.option(
    "--scheduler",
    type=_one_of(LIMITS),
    multiple=True,
    metavar="KEY=VALUE",
    help=f"in place of what the server reports: {', '.join(LIMITS)}; repeat",
)
@token_file_option("control")
@click.option("--api-key-file", type=FILE, metavar="FILE", help="the server's own key, for --requests")
@json_option("what was measured as one JSON document on standard output; the profile is written as well")
def profile(**given: Any) -> int:
    """Measure the step costs of a running server, as an engine profile for specctl simulate.

    Puts other tables in force for a part of the time and the present one back at the end.
    """
    asyncio.run(_profile(_Options(**given)))
    return 0


async def _profile(options: _Options) -> None:
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
        with clock_progress(f"measuring {target}", options.for_s):
            measured = await _measure(client, capabilities, options, clock, stop)
    if measured.is_interrupted:
        raise SpecctlError("interrupted: the table is as it was found, and no profile is written")
    from specctl.simulate.profiling.cost_fit import fit_costs

    costs = fit_costs(measured.rows, experts_of(capabilities))
    made = engine_profile(measured, costs, capabilities, fingerprint, limits, utc=clock.utc())
    _write(output, made)
    if options.as_json:
        print_json({"file": str(output), "profile": made.model_dump(mode="json")})
    else:
        click.echo("\n".join(_words(made, output)))


def _need_scikit_learn() -> None:
    """Before anything is measured. Raises SpecctlError."""
    if importlib.util.find_spec("sklearn") is None:
        raise SpecctlError(f"specctl profile needs the package scikit-learn; {install_words('simulate')}")


async def _measure(
    client: EngineClient,
    capabilities: Capabilities,
    options: _Options,
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
