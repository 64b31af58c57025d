"""``specctl record TARGET``: a telemetry log of a running server."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
from pathlib import Path

from specctl.clock import SystemClock
from specctl.daemon.fleet import stop_on_signals
from specctl.engine_api.client import EngineClient
from specctl.errors import SpecctlError
from specctl.http_client import HttpClient, normalise_target, read_token
from specctl.record.recorder import Recorder
from specctl.record.writer import LogWriter

__all__ = ["add_arguments", "run"]

logger = logging.getLogger(__name__)

EVERY_S = 2.0
MAX_BYTES = 256 * 1024 * 1024
PATIENCE_S = 5.0
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_WORDS = {"asked": "stopped", "time": "its time is over", "size": "the log has reached its size"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="JSON lines; an existing log goes on"
    )
    parser.add_argument(
        "--every", type=_seconds, default=EVERY_S, metavar="SECONDS", help=f"default: {EVERY_S:g}"
    )
    parser.add_argument("--for", dest="for_s", type=_seconds, metavar="SECONDS", help="default: until asked")
    parser.add_argument(
        "--max-bytes", type=_size, default=MAX_BYTES, metavar="N", help="end there; 64M, 2G; default: 256M"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="bearer token with the read scope")


def run(options: argparse.Namespace) -> int:
    """Raises SpecctlError for what is wrong before the first line, and when the disk fails."""
    asyncio.run(_record(options))
    return 0


async def _record(options: argparse.Namespace) -> None:
    token = None if options.token_file is None else read_token(options.token_file)
    target = normalise_target(options.target)
    stop = asyncio.Event()
    stop_on_signals(stop)
    async with HttpClient(target, token=token, timeout_s=PATIENCE_S) as client:
        recorder = Recorder(EngineClient(client), SystemClock(), every_s=options.every)
        await recorder.reach()
        with LogWriter(options.output, max_bytes=options.max_bytes) as writer:
            if writer.size_bytes >= options.max_bytes:
                raise SpecctlError(f"{options.output}: has reached --max-bytes {options.max_bytes} already")
            logger.info("recording %s every %g s to %s", client.target, options.every, options.output)
            reason = await recorder.run(writer, stop, for_s=options.for_s)
            size = writer.size_bytes
    logger.info("%s: %d readings, %d bytes", _WORDS[reason], recorder.readings, size)


def _seconds(text: str) -> float:
    """For argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.05 <= value <= 1e9:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.05, got {text!r}")
    return value


def _size(text: str) -> int:
    """Bytes, with K, M or G, for argparse."""
    number = text.rstrip("KMG")
    unit = text[len(number) :]
    if not number.isascii() or not number.isdigit() or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"expected bytes such as 5000000, 64M or 2G, got {text!r}")
    value = int(number) * _UNITS[unit]
    if value < 16 * 1024:
        raise argparse.ArgumentTypeError(f"expected at least 16K, got {text!r}")
    return value
