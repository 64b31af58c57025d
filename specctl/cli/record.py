"""``specctl record TARGET``: a telemetry log of a running server."""

from __future__ import annotations

import asyncio
import logging
import math
from pathlib import Path

import click

from specctl.cli.options import FILE, token_file_option
from specctl.clock import SystemClock
from specctl.daemon.fleet import stop_on_signals
from specctl.engine_api.client import EngineClient
from specctl.errors import SpecctlError
from specctl.http_client import HttpClient, normalise_target, read_token
from specctl.record.recorder import Recorder
from specctl.record.writer import LogWriter
from specctl.terminal import clock_progress, examples

__all__ = ["record"]

logger = logging.getLogger(__name__)

EVERY_S = "2"
MAX_BYTES = "256M"
PATIENCE_S = 5.0
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_WORDS = {"asked": "stopped", "time": "its time is over", "size": "the log has reached its size"}


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.05 <= value <= 1e9:
        raise click.BadParameter(f"expected seconds from 0.05, got {text!r}")
    return value


def _size(text: str) -> int:
    """Bytes, with K, M or G."""
    number = text.rstrip("KMG")
    unit = text[len(number) :]
    if not number.isascii() or not number.isdigit() or unit not in _UNITS:
        raise click.BadParameter(f"expected bytes such as 5000000, 64M or 2G, got {text!r}")
    value = int(number) * _UNITS[unit]
    if value < 16 * 1024:
        raise click.BadParameter(f"expected at least 16K, got {text!r}")
    return value


@click.command(
    epilog=examples(
        "specctl record http://localhost:8000 --output load.jsonl --for 3600",
        "specctl record http://localhost:8000 --output load.jsonl --every 1 --max-bytes 1G",
    )
)
@click.argument("target")
@click.option(
    "--output",
    required=True,
    type=FILE,
    metavar="FILE",
    help="the log, as JSON lines; an existing one is continued",
)
@click.option(
    "--every",
    type=_seconds,
    default=EVERY_S,
    metavar="SECONDS",
    help=f"seconds between two readings; default: {EVERY_S}",
)
@click.option(
    "--for", "for_s", type=_seconds, metavar="SECONDS", help="end after so long; default: until Ctrl-C"
)
@click.option(
    "--max-bytes",
    type=_size,
    default=MAX_BYTES,
    metavar="N",
    help="end at this size of the log, such as 64M or 2G; default: " + MAX_BYTES,
)
@token_file_option("read")
def record(
    target: str,
    output: Path,
    every: float,
    for_s: float | None,
    max_bytes: int,
    token_file: Path | None,
) -> int:
    """Write a telemetry log of a running server, for specctl replay, simulate and recommend."""
    token = None if token_file is None else read_token(token_file)
    asyncio.run(_record(normalise_target(target), token, output, every, for_s, max_bytes))
    return 0


async def _record(
    target: str, token: str | None, output: Path, every_s: float, for_s: float | None, max_bytes: int
) -> None:
    """Raises SpecctlError for what is wrong before the first line, and when the disk fails."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    async with HttpClient(target, token=token, timeout_s=PATIENCE_S) as client:
        recorder = Recorder(EngineClient(client), SystemClock(), every_s=every_s)
        await recorder.reach()
        with LogWriter(output, max_bytes=max_bytes) as writer:
            if writer.size_bytes >= max_bytes:
                raise SpecctlError(f"{output}: has reached --max-bytes {max_bytes} already")
            logger.info("recording %s every %g s to %s", target, every_s, output)
            with clock_progress(f"recording {target}", for_s):
                reason = await recorder.run(writer, stop, for_s=for_s)
            size = writer.size_bytes
    logger.info("%s: %d readings, %d bytes", _WORDS[reason], recorder.readings, size)
