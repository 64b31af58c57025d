"""``specctl simulate``."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specctl.errors import SimulationInputError, SpecctlError
from specctl.policy.loader import find_policy, load_policy
from specctl.policy.models import AnyPolicy
from specctl.record.reader import is_log
from specctl.simulate.chart import draw
from specctl.simulate.engine_profile import EngineProfile, load_profile
from specctl.simulate.files import find_file
from specctl.simulate.recorded import load_recorded
from specctl.simulate.report import notes, table, write_json
from specctl.simulate.scenario import Scenario, load_scenario
from specctl.simulate.trace import Trace, load_trace

if TYPE_CHECKING:
    from specctl.simulate.arms import Arm

__all__ = ["add_arguments", "run"]

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace", required=True, type=Path, metavar="FILE", help="CSV, or a log of specctl record"
    )
    parser.add_argument(
        "--engine-profile", required=True, metavar="FILE", help="a file, or a shipped one's name"
    )
    parser.add_argument(
        "--acceptance",
        metavar="FILE",
        help="a file, or a shipped one's name; default: steady, for a log what it recorded",
    )
    parser.add_argument(
        "--policy", required=True, nargs="+", action="extend", metavar="FILE", help="files, or shipped names"
    )
    parser.add_argument("--speed", type=float, default=1.0, metavar="F", help="arrivals F times as dense")
    parser.add_argument("--requests", type=_positive, metavar="N", help="only the trace's first N")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all luck; default: 0")
    parser.add_argument(
        "--batch-table", type=_batch_table, metavar="RANGES", help="the stock table: 1-16:7,17-100:3,101-:0"
    )
    parser.add_argument(
        "--fingerprint", type=_key_value, action="append", metavar="KEY=VALUE",
        help="refuse the profile of another machine: gpu, model, engine, dtype, parallelism; repeat",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison")
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="draw it; needs matplotlib")


def run(options: argparse.Namespace) -> int:
    """Raises PolicyError and SpecctlError. Prints the table; progress goes to the log."""
    _need_numba()
    from specctl.simulate.compare import compare

    profile = load_profile(find_file(options.engine_profile, "profiles"))
    profile.refuse_unless(dict(options.fingerprint or ()))
    asked = None if options.acceptance is None else load_scenario(find_file(options.acceptance, "scenarios"))
    policies = _policies(options.policy)
    trace, recorded = _trace(options, profile)
    scenario = asked or recorded or load_scenario(find_file("steady", "scenarios"))
    arms = _arms(policies, options.batch_table, profile.num_speculative_tokens_max)
    comparison = compare(trace, profile, scenario, arms, seed=options.seed, on_arm=_on_arm)
    described = notes(trace, profile, scenario)
    print(described, table(comparison), sep="\n")
    if options.json is not None:
        inputs = {
            "trace": str(options.trace),
            "speed": options.speed,
            "seed": options.seed,
            "requests": len(trace),
            "skipped": dict(trace.skipped),
            "acceptance": scenario.model_dump(mode="json"),
            "engine_profile": profile.model_dump(mode="json"),
            "policies": {name: policy.model_dump(mode="json") for name, policy in policies.items()},
        }
        write_json(options.json, comparison, inputs)
    if options.chart is not None:
        draw(comparison, list(policies), described.splitlines()[0], options.chart)
    return 0


def _on_arm(arm: str) -> None:
    logger.info("simulating: %s", arm)


def _trace(options: argparse.Namespace, profile: EngineProfile) -> tuple[Trace, Scenario | None]:
    """The requests; and of a log the acceptance, where no other is asked for."""
    from specctl.simulate.engine import fitting

    scenario = None
    if is_log(options.trace):
        trace, scenario = _recorded(options)
    else:
        trace = load_trace(options.trace).spread()
    if options.requests is not None:
        trace = trace.first(options.requests)
    trace = fitting(trace.scaled(options.speed), profile)
    if not len(trace):
        raise SimulationInputError(
            f"{options.trace}: expected a request that fits the server, got none ({dict(trace.skipped)})"
        )
    return trace, None if scenario is None else scenario.scaled(options.speed)


def _recorded(options: argparse.Namespace) -> tuple[Trace, Scenario | None]:
    load = load_recorded(options.trace, seed=options.seed)
    if options.acceptance is not None:
        return load.trace, None
    if load.scenario is None:
        raise SimulationInputError(
            f"{options.trace}: its acceptance is not known: {load.why_no_scenario}; "
            "name one with --acceptance"
        )
    return load.trace, load.scenario


def _arms(
    policies: dict[str, AnyPolicy], ranges: list[tuple[int, int, int]] | None, drafts_max: int
) -> list[Arm]:
    from specctl.simulate.arms import STOCK_TABLE, arms_without_daemon
    from specctl.simulate.daemon import Autotune

    ours = [Autotune(name, policy) for name, policy in policies.items()]
    return [*ours, *arms_without_daemon(drafts_max, ranges or STOCK_TABLE)]


def _policies(files: list[str]) -> dict[str, AnyPolicy]:
    """By name of the arm; equal names get a mark."""
    named: dict[str, AnyPolicy] = {}
    for file in files:
        path = find_policy(file)
        name = f"policy {path.stem}"
        while name in named:
            name += "'"
        named[name] = load_policy(path)
    return named


def _need_numba() -> None:
    """The simulator's steps are compiled; what takes them in is imported later."""
    if importlib.util.find_spec("numba") is None:
        raise SpecctlError("specctl simulate needs numba: pip install 'specctl-serving[simulate]'")


def _key_value(text: str) -> tuple[str, str]:
    """KEY=VALUE, for argparse."""
    key, separator, value = text.partition("=")
    if not separator or not key or not value:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    return key, value


def _batch_table(text: str) -> list[tuple[int, int, int]]:
    """FROM-TO:NUMBER,... for argparse; the ranges must begin at 1, touch, and the last may end open."""
    ranges: list[tuple[int, int, int]] = []
    for part in text.split(","):
        span, _, number = part.partition(":")
        low, dash, high = span.partition("-")
        try:
            ranges.append((int(low), int(high) if high else sys.maxsize if dash else int(low), int(number)))
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected FROM-TO:NUMBER,..., got {part!r}") from None
        expected = 1 if len(ranges) == 1 else ranges[-2][1] + 1
        if ranges[-1][0] != expected or ranges[-1][1] < expected or ranges[-1][2] < 0:
            raise argparse.ArgumentTypeError(
                f"expected a range from {expected} on and a number from 0, got {part!r}"
            )
    return ranges


def _positive(text: str) -> int:
    """A whole number from 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return value
